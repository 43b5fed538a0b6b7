"""What the documents show is what the code does."""

import importlib.util
import json
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_waveform_is_what_the_decoder_does():
    spec = importlib.util.spec_from_file_location("waveform", DOCS / "waveform.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = json.loads((DOCS / "decoder-wave.json").read_text())
    assert shown == module.waveform()  # `make docs` makes it anew
    assert "decoder-wave.svg" in (DOCS / "decoder.md").read_text()
