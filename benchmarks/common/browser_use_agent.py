"""browser-use, as its users run it, with its own names for what a harness gets. Runs in a venv with browser-use, not in ours.

`python browser_use_agent.py` takes its assignment from the environment.
"""

import asyncio
import os

os.environ["ANONYMIZED_TELEMETRY"] = "false"
os.environ["BROWSER_USE_VERSION_CHECK"] = "false"

from browser_use import Agent, Browser
from browser_use.llm import ChatOpenAI


async def main() -> None:
    model = ChatOpenAI(
        model="policy",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        temperature=float(os.environ["FLYWHEEL_TEMPERATURE"]),
        seed=int(os.environ["FLYWHEEL_SEED"]) % 2**31,
        frequency_penalty=None,
        dont_force_structured_output=os.environ.get("AGENT_PLAIN") == "1",
        max_completion_tokens=int(os.environ.get("AGENT_MAX_TOKENS", "512")),
    )
    agent = Agent(
        task=os.environ["FLYWHEEL_INSTRUCTION"],
        llm=model,
        browser=Browser(cdp_url=os.environ["FLYWHEEL_DEVTOOLS"]),
        use_vision=False,
        flash_mode=True,
        use_judge=False,
        override_system_message=os.environ.get("AGENT_SYSTEM_MESSAGE"),
    )
    await agent.run(max_steps=int(os.environ["FLYWHEEL_MAX_STEPS"]))


if __name__ == "__main__":
    asyncio.run(main())
