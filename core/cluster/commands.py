"""The commands ``claw-studio cluster up``, ``status``, ``down`` and ``forget``."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from core.client import StudioClient
from core.commands import DataOption
from core.config import ENV_PREFIX, TOML_NAME, Settings
from core.errors import InvalidInput, StudioError
from core.owner import running_service
from core.printable import print_json

Connect = Callable[[Path | None], AbstractContextManager[StudioClient]]
"""A client of the service that owns this data folder."""
RayOption = Annotated[str, typer.Option("--ray", help="Address of the Ray cluster: auto, or host:port")]
HUB_PORT = 8199
TOKEN_FILE = "cluster.token"
PASSED = ("PYTHONPATH", "LITELLM_LOCAL_MODEL_COST_MAP", "HF_HUB_OFFLINE", "SSL_CERT_FILE")
"""Variables that gateways on other nodes take over, beside the settings in the hub's first message."""


def cluster_app(connect: Connect, read_settings: Callable[..., Settings]) -> typer.Typer:
    """The group of commands. ``read_settings``: settings, overridden by its arguments."""
    app = typer.Typer(help="Gateways on every node of a Ray cluster, and one studio.", no_args_is_help=True)

    @app.command()
    def up(
        data: DataOption = None,
        ray: RayOption = "auto",
        node_data: Annotated[
            str, typer.Option(help="Folder of journals on the other nodes' own disks; {node} is the node's name")
        ] = "/var/tmp/claw-studio",
        pool_address: Annotated[
            str | None, typer.Option(help="Address of the node that holds the pool; by default this one")
        ] = None,
        hub_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the pool node for agents")] = HUB_PORT,
        python: Annotated[
            str, typer.Option(help="Interpreter that has the studio, at the same path on all nodes")
        ] = sys.executable,
        pages: Annotated[bool, typer.Option(help="Serve the pages as well")] = True,
    ) -> None:
        """Start the studio on the pool node and gateways on all other nodes, present and future. Prints its address.

        Settings are read here (environment, studio.toml) and used on all nodes; engines need addresses that all nodes
        reach. Running it twice changes nothing.
        """
        from core.cluster.placing import connect as connect_ray
        from core.cluster.placing import pool_address_of
        from core.cluster.placing import up as place

        settings = read_settings(data_dir=data)
        data_dir = settings.data_dir.absolute()
        hub = f"{pool_address_of(connect_ray(ray), pool_address)}:{hub_port}"
        token = settings.cluster_token or _token(data_dir)
        settings = read_settings(data_dir=data_dir, cluster_listen=hub, cluster_token=token)
        _check(settings)
        command = [python, "-m", "core.cli"] + ([] if pages else ["serve"])
        options = {
            "command": command,
            "environment": {**_environment(), **_settings_environment(settings)},
            "data_dir": str(data_dir),
            "hub": hub,
            "token": token,
            "node_data": node_data,
            "python": python,
            "node_environment": {name: os.environ[name] for name in PASSED if name in os.environ},
        }
        print_json({"ready": True, **place(ray, options, pool_address=pool_address), "hub": hub})

    @app.command()
    def status(data: DataOption = None, ray: RayOption = "auto") -> None:
        """Print the cluster's state, one line of JSON for each node, and then the sum. Exit code 1 without a studio."""
        from core.cluster.placing import status as look

        settings = read_settings(data_dir=data)
        cluster: dict[str, Any] | None = None
        if running_service(settings.data_dir) is not None:
            with connect(data) as client:
                cluster = client.call("GET", "/api/v1/cluster")["cluster"]
        if cluster is None:
            cluster = look(ray)
        if cluster is None:
            print_json({"cluster": None, "hint": "claw-studio cluster up"})
            raise typer.Exit(1)
        for node in cluster.pop("nodes"):
            print_json(node)
        print_json({"cluster": cluster})

    @app.command()
    def down(ray: RayOption = "auto") -> None:
        """End the gateways after their calls in flight, then the studio. Journals stay on the nodes' disks."""
        from core.cluster.placing import down as end

        print_json({"ended": end(ray)})

    @app.command()
    def forget(
        node: Annotated[str, typer.Argument(help="Name of the node, see status")], data: DataOption = None
    ) -> None:
        """Wait no more for the records of a node whose disk does not come back."""
        with connect(data) as client:
            print_json(client.call("DELETE", f"/api/v1/cluster/nodes/{quote(node, safe='')}"))

    return app


def _check(settings: Settings) -> None:
    if settings.engine == "local" and not settings.engines:
        raise InvalidInput(
            "the embedded engine runs on one machine only",
            field="engine",
            hint="set CLAW_STUDIO_ENGINE to the base URL of an engine that all nodes reach",
        )
    if settings.node_host == "node" and not settings.api_key:
        raise StudioError(
            "gateways that listen on the nodes' addresses need an admin key",
            field="api_key",
            hint="set CLAW_STUDIO_API_KEY to a long random key, or node_host to local",
        )


def _token(data_dir: Path) -> str:
    """The cluster's secret, kept in the data folder."""
    path = data_dir / TOKEN_FILE
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(24))
    return path.read_text().strip()


def _environment() -> dict[str, str]:
    """The variables of this process, for the studio on the pool node."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def _settings_environment(settings: Settings) -> dict[str, str]:
    """The settings that this command found or chose, as variables."""
    toml = Path(os.environ.get(f"{ENV_PREFIX}CONFIG", TOML_NAME)).absolute()
    return {
        f"{ENV_PREFIX}DATA_DIR": str(settings.data_dir),
        f"{ENV_PREFIX}CLUSTER_LISTEN": settings.cluster_listen or "",
        f"{ENV_PREFIX}CLUSTER_TOKEN": settings.cluster_token or "",
        **({f"{ENV_PREFIX}CONFIG": str(toml)} if toml.exists() else {}),
    }
