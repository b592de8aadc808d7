"""An agent of OpenAI's Agents SDK with tools that drive the session over HTTP. Runs in a venv with openai-agents, not in ours.

`python openai_agents_agent.py` takes its assignment from the environment.
"""

import json
import os
import urllib.request

from agents import Agent, Runner, function_tool, set_tracing_disabled

SESSION = os.environ["FLYWHEEL_SESSION"]


def sent(path: str, body: object = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SESSION + path, data, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def listed(observation: dict) -> str:
    lines = [f"[{number}]<{one['role']} />{one['text']}" for number, one in enumerate(observation["elements"], 1)]
    return "\n".join(["Interactive elements:", *lines])


def act(action: dict) -> str:
    return listed(sent("/step", action)["observation"])


def click_on(index: int) -> str:
    one = sent("")["elements"][index - 1]
    return act({"kind": "click", "x": one["x_px"], "y": one["y_px"]})


@function_tool
def click(index: int) -> str:
    """Click on the element of this number."""
    return click_on(index)


@function_tool
def input(index: int, text: str) -> str:
    """Type a text into the element of this number."""
    click_on(index)
    return act({"kind": "type", "text": text})


def main() -> None:
    set_tracing_disabled(True)
    agent = Agent(name="operator", instructions="Do what the user asks on the screen.", model="policy", tools=[click, input])
    asked = f"<user_request>{os.environ['FLYWHEEL_INSTRUCTION']}</user_request>\n{listed(sent(''))}"
    Runner.run_sync(agent, asked, max_turns=int(os.environ["FLYWHEEL_MAX_STEPS"]))


if __name__ == "__main__":
    main()
