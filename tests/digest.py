"""Decodes clips with whatever library PADSINK_LIB names and prints one JSON line per decoding: text, tokens, and a
digest of every step's logits. Run as a program, so that two builds never meet in one process.

    python digest.py REQUESTS.json
    REQUESTS.json: {"model": path, "fresh": new state for each request or one for all,
                    "requests": [{"audio": path, "decoding": {...}, "rule": [name, {...}] or null}]}
"""

import hashlib
import json
import sys
from pathlib import Path

from pyharness import audio, rules
from pyharness.native import Decoding, Model


def digest(state, request) -> dict:
    if request.get("rule"):
        name, settings = request["rule"]
        state.set_view(rules.make(name, **settings))
    sha256 = hashlib.sha256()
    transcript = state.transcribe(
        audio.load(request["audio"]), Decoding(**request["decoding"]), on_logits=lambda logits: sha256.update(logits)
    )
    return {"text": transcript.text, "tokens": transcript.tokens, "logits": sha256.hexdigest()}


def main():
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Model(job["model"]) as model:
        state = model.state()
        for request in job["requests"]:
            print(json.dumps(digest(state, request)), flush=True)
            if job["fresh"]:
                state.close()
                state = model.state()
        state.close()


if __name__ == "__main__":
    main()
