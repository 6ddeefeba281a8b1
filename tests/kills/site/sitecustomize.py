"""Python runs this file at each start of a process of the service."""

from tests.kills.points import install, role_of_process

install(role_of_process())
