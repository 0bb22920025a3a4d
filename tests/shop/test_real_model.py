"""The same shop on a model server: any that speaks Chat Completions."""

from __future__ import annotations

import pytest

from agora_agent.providers.shop import shop_script
from agora_agent.testing.server import FakeOpenAI, scripted
from tests.shop.harness import Shop

pytestmark = pytest.mark.processes


def test_a_model_behind_openai_base_url_runs_the_shop(own_shop: Shop) -> None:
    with FakeOpenAI(script=scripted(shop_script)) as model:
        own_shop.environment.update(OPENAI_BASE_URL=model.base_url, OPENAI_MODEL="house-model")
        own_shop.start()
        frames = own_shop.say(
            "alice", "Refund 12.50 for order 1001 because it is chipped", until=("approval",)
        )
        call = frames[-1].data
        body = {"runId": call["runId"], "toolCallId": call["id"], "digest": call["digest"]}
        assert own_shop.call("carol", "/agent/tool-call/approve", body).status == 200
        rest = own_shop.follow("alice", call["runId"], frames[-1].id or 0)
        assert rest[-1].event == "done"
        assert [row["amount"] for row in own_shop.rows("refund")] == ["12.50"]
        # One request for each step: look the order up, ask for the refund, say how it ended.
        assert [request["model"] for request in model.requests] == ["house-model"] * 3
        assert model.violations == []
