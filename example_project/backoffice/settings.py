"""Settings of the shop. Everything that differs between machines comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path

import dj_database_url

from backoffice import state

BASE_DIR = Path(__file__).resolve().parents[1]


def _flag(name: str, default: bool) -> bool:
    return os.environ.get(name, "1" if default else "0").strip().lower() in ("1", "true", "yes", "on")


SECRET_KEY = state.secret_key()
DEBUG = _flag("DJANGO_DEBUG", default=False)
ALLOWED_HOSTS = [
    host for host in os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",") if host
]
ROOT_URLCONF = "backoffice.urls"
ASGI_APPLICATION = "backoffice.asgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DISPATCHER = os.environ.get("AGORA_DISPATCHER") or "thread"

INSTALLED_APPS = [
    "daphne",  # `manage.py runserver` then serves streams too
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "agora_agent",
    "agora_agent.durable",
    "shop",
]
if DISPATCHER == "django_q":
    INSTALLED_APPS.append("django_q")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASE_URL = os.environ.get("DATABASE_URL") or f"sqlite:///{state.directory() / 'shop.sqlite3'}"
# No persistent connections: under ASGI each request has a thread of its own, and would leave one behind.
DATABASES = {"default": dj_database_url.parse(DATABASE_URL, conn_max_age=0)}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # Several writers at once need IMMEDIATE (no deadlock on upgrade) and WAL (readers do not block);
    # FULL, because a checkpoint that was answered for must survive a power cut.
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    }

STATIC_URL = "/static/"
# Static files straight from the apps: the demo has no collectstatic step and runs with DEBUG off.
WHITENOISE_USE_FINDERS = True

PASSWORD_HASHERS = ["backoffice.hashers.DemoHasher", "django.contrib.auth.hashers.PBKDF2PasswordHasher"]
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.BasicAuthentication",
        "rest_framework.authentication.TokenAuthentication",
    ]
}

REDIS_URL = os.environ.get("REDIS_URL", "")
if REDIS_URL:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [REDIS_URL]},
        }
    }

# One server process polls its own database well enough; a layer is needed with several (REDIS_URL).
SILENCED_SYSTEM_CHECKS = ["agora_agent.I021"]

Q_CLUSTER = {
    "name": "shop",
    "orm": "default",
    "workers": 2,
    "timeout": 600,
    "retry": 900,
    "max_attempts": 1,
    "ack_failures": True,
    "save_limit": -1,
    "poll": 0.2,
    "queue_limit": 2,
    "bulk": 1,
    "catch_up": False,
    "recycle": 500,
}

OPENAI_MODEL = os.environ.get("OPENAI_MODEL") or "gpt-4o-mini"
# Without a server or a key the deterministic model answers: the demo works on a machine without a network.
OFFLINE_MODEL = not (os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"))

AGORA_AGENT: dict[str, object] = {
    "DURABLE": _flag("AGORA_DURABLE", default=True),
    "DISPATCHER": DISPATCHER,
    "MODEL_PROVIDER": (
        "agora_agent.providers.scripted.ScriptedModel"
        if OFFLINE_MODEL
        else "agora_agent.providers.openai.OpenAIProvider"
    ),
    "MODEL": OPENAI_MODEL,
    "OPENAI_BASE_URL": os.environ.get("OPENAI_BASE_URL") or None,
    # Servers of one's own often want no key; the SDK always wants a word.
    "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY") or (None if OFFLINE_MODEL else "none"),
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        # Refusals are answers, not news for the terminal.
        "django.request": {"level": "ERROR"},
        "django-q": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
    },
}
