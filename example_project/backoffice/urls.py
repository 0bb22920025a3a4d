"""The chat at ``/``, the agent's routes under ``/agent/``, the admin under ``/admin/``."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView
from shop import views

admin.site.site_header = "Shop back office"
admin.site.site_title = "Shop"

if apps.is_installed("django_q"):
    # Its schedules run any dotted path, and its pages unpickle stored results: nothing for a back office.
    for model in apps.get_app_config("django_q").get_models():
        if admin.site.is_registered(model):
            admin.site.unregister(model)

urlpatterns = [
    path("", views.chat, name="chat"),
    path("login", auth_views.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout", auth_views.LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
    path("agent/", include("agora_agent.api.urls")),
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),
]
