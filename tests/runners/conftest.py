from tests.support.fixtures import alice, carol, clerk, either_runner, engine  # noqa: F401
