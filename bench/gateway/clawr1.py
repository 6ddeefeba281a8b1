"""Runs Claw-R1's unchanged gateway for benchmarks, in an environment that has verl, ray, fastapi and uvicorn.

    python bench/gateway/clawr1.py CHECKOUT UPSTREAM_URL TOKENIZER_DIR

Prints a ready line; stops at stdin's end. Their trainer would make the data pool and load the tokenizer; this does that
and nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    checkout, upstream, tokenizer_dir = sys.argv[1:4]
    sys.path.insert(0, checkout)
    os.environ["PYTHONPATH"] = checkout
    import httpx
    import ray
    import uvicorn
    from claw_r1.data_pool.data_model import DataPoolConfig
    from claw_r1.data_pool.data_pool import DataPool
    from claw_r1.gateway import gateway
    from transformers import PreTrainedTokenizerFast

    class Tokenizer(PreTrainedTokenizerFast):
        """As in transformers 4, for which Claw-R1 was written: a rendered prompt is a list of ids."""

        def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_chat_template(*args, **{"return_dict": False, **kwargs})

    folder = Path(tokenizer_dir)
    tokenizer = Tokenizer(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>")
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=256 << 20)
    gateway._data_pool = DataPool.remote(DataPoolConfig(n_rollouts=1), None)
    gateway._vllm_cycle = itertools.cycle([upstream])
    gateway._tokenizer = tokenizer
    gateway._prompt_length, gateway._response_length = 32768, 4096
    gateway._http_client = httpx.AsyncClient()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server = uvicorn.Server(uvicorn.Config(gateway.app, host="127.0.0.1", port=port, log_level="warning"))
    print(json.dumps({"ready": True, "port": port}), flush=True)
    server.run()


if __name__ == "__main__":
    main()
