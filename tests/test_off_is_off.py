"""Without a view, our library is upstream with patch 0001: same texts, same logits to the last bit.

On fresh states: upstream's beam search draws from a generator that it never seeds again, so on a state that decoded
before, `stock` depends on history and we (patch 0003) do not.
"""

import native_tools as tools
import pytest


@pytest.mark.parametrize(("model", "speech", "n"), [("tiny_en", "asterisk-en", 33), ("base", "asterisk-ru", 7)])
def test_logits_and_texts_equal_stock(model, speech, n, request, tmp_path):
    path = request.getfixturevalue(model)
    requests = [
        tools.request(clip.audio, language=clip.language, beam_size=beam_size)
        for clip in tools.clips(speech, n)
        for beam_size in (1, 5)
    ]
    processes = [
        tools.start_decoding(build, path, requests, tmp_path, fresh=True) for build in (tools.OURS, tools.STOCK)
    ]
    ours, stock = (tools.results(process) for process in processes)
    assert len(ours) == len(requests)
    assert any(result["text"] for result in ours)
    for wanted, got, asked in zip(stock, ours, requests, strict=True):
        assert got == wanted, asked
