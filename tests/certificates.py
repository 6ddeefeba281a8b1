"""Certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.left_out import missing


def self_signed(folder: Path, host: str, alternative: str) -> tuple[Path, Path]:
    """Certificate and key as PEM files in ``folder``, for the name ``host`` and e.g. ``IP:127.0.0.1``."""
    if shutil.which("openssl") is None:
        missing("no openssl on this machine: the TLS tests did not run")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName={alternative}", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key
