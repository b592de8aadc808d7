"""The waiting sessions of benchmarks/nodes.py in NeMo Gym's way: one resources server on a node with all the sessions, whose tool takes as
long as a step; on the head its rollout collection, its simple agent, the relay that it puts in front of an agent, and a model server that
always clicks. Each is a process, as `gym env start` has it. Runs in NeMo Gym's venv; the standard library and NeMo Gym only.

    nemo_gym_waiting.py resources|model|agent|environment HEAD NODE STEP_MS STEPS
    nemo_gym_waiting.py play HEAD NODE STEP_MS STEPS SESSIONS EPISODES_A_SESSION PIDS_OF_NODE PIDS_OF_HEAD

`play` wants the servers up and prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any
from uuid import uuid4

ROLE, HEAD, NODE = sys.argv[1:4]
STEP_MS, STEPS = float(sys.argv[4]), int(sys.argv[5])
PORTS = {"resources": 8423, "model": 8424, "agent": 8425, "environment": 8426}


def _server(kind: str, name: str, role: str, host: str, **settings: Any) -> dict[str, Any]:
    return {kind: {name: {"entrypoint": "app.py", "domain": "agent", "host": host, "port": PORTS[role], **settings}}}


def _config() -> dict[str, Any]:
    """What `gym env start` makes of the files of servers, and hands to each of them."""
    resources, model = {"type": "resources_servers", "name": "resources"}, {"type": "responses_api_models", "name": "model"}
    agent = {"type": "responses_api_agents", "name": "agent"}
    return {
        "head_server": {"host": HEAD, "port": 8427},
        "dry_run": False,
        "resources": _server("resources_servers", "waiting", "resources", NODE),
        "model": _server("responses_api_models", "clicking", "model", HEAD),
        "agent": _server("responses_api_agents", "simple_agent", "agent", HEAD, resources_server=resources, model_server=model),
        "environment": _server("environment_servers", "legacy_agent", "environment", HEAD, agent_server=agent),
    }


os.environ |= {"NEMO_GYM_CONFIG_DICT": json.dumps(_config()), "NEMO_GYM_CONFIG_PATH": ROLE}  # read when its modules are

from environment_servers.legacy_agent.app import LegacyAgentEnvironmentServer  # noqa: E402
from fastapi import FastAPI, Request  # noqa: E402
from nemo_gym.base_resources_server import (  # noqa: E402
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel  # noqa: E402
from nemo_gym.openai_utils import (  # noqa: E402
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_collection import RolloutCollectionHelper  # noqa: E402
from nemo_gym.server_utils import SESSION_ID_KEY  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402
from responses_api_agents.simple_agent.app import SimpleAgent  # noqa: E402
from waiting_episodes import print_measured  # noqa: E402


class Click(BaseModel):
    x: int
    y: int


class Seen(BaseModel):
    text: str


class Waiting(SimpleResourcesServer):  # type: ignore[misc]
    """All the sessions: a count of each."""

    ray_enabled = False
    config: BaseResourcesServerConfig
    counts: dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/click")(self.click)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:  # type: ignore[override]
        self.counts[request.session[SESSION_ID_KEY]] = 0
        return BaseSeedSessionResponse()

    async def click(self, request: Request, body: Click) -> Seen:
        await asyncio.sleep(STEP_MS / 1000)
        self.counts[request.session[SESSION_ID_KEY]] += 1
        return Seen(text=f"count {self.counts[request.session[SESSION_ID_KEY]]}")

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:  # type: ignore[override]
        count = self.counts.pop(request.session[SESSION_ID_KEY])
        return BaseVerifyResponse(**body.model_dump(), reward=float(count == STEPS))


class Clicking(SimpleResponsesAPIModel):  # type: ignore[misc]
    """The model that solves it."""

    ray_enabled = False
    config: BaseResponsesAPIModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        done = sum(getattr(item, "type", None) == "function_call_output" for item in body.input)
        call = {"type": "function_call", "name": "click", "arguments": '{"x": 1, "y": 1}', "call_id": f"call-{done}", "id": f"fc-{done}"}
        part = {"type": "output_text", "text": "Done.", "annotations": []}
        message = {"type": "message", "role": "assistant", "id": "msg", "status": "completed", "content": [part]}
        answer = {"id": f"resp-{uuid4().hex}", "created_at": time.time(), "model": "clicking", "object": "response"}
        settings = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
        return NeMoGymResponse.model_validate({**answer, **settings, "output": [call if done < STEPS else message]})

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        raise NotImplementedError("the simple agent asks for responses")


async def _play() -> None:
    sessions, episodes = int(sys.argv[6]), int(sys.argv[7])
    nodes, head = ([int(pid) for pid in argument.split(",")] for argument in sys.argv[8:10])
    parameters = {"type": "object", "properties": {name: {"type": "integer"} for name in "xy"}, "required": ["x", "y"]}
    tool = {"type": "function", "name": "click", "parameters": parameters, "strict": False, "description": "Click."}
    asked = {"input": [{"role": "user", "content": "Click."}], "tools": [tool]}

    async def play(num: int) -> list[float]:
        rows = [{"responses_create_params": asked, "agent_ref": {"name": "agent"}, "_ng_task_index": index} for index in range(num)]
        done_s = []
        for future in RolloutCollectionHelper().run_examples(rows, semaphore=asyncio.Semaphore(sessions)):
            _, result = await future
            assert result["reward"] == 1.0, f"an episode failed: {result}"
            done_s.append(time.monotonic())
        return done_s

    await print_measured(play, sessions, episodes, STEPS, nodes, head)


SERVERS = {"resources": Waiting, "model": Clicking, "agent": SimpleAgent, "environment": LegacyAgentEnvironmentServer}

if ROLE == "play":
    asyncio.run(_play())
else:
    SERVERS[ROLE].run_webserver()
