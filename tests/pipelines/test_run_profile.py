"""The run configuration of the profile: what the Launchpad is told of it, what it refuses, and what a run works under."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from assets.settings.profile import Profile
from assets.stages.resources import ProfileResource
from pipelines import profiles
from pipelines.definitions import build_defs
from pipelines.orchestration.runs import profile as run_profile
from warehouse.core.errors import ConfigError


def validated(config: dict[str, Any], job: str = "iteration") -> Any:
    definition = build_defs().resolve_job_def(job)
    return dg.validate_run_config(definition, {"resources": {"profile": {"config": config}}})


def test_a_setting_is_offered_with_its_type_its_meaning_and_its_value() -> None:
    standing = profiles.load("smoke")
    fields = run_profile.build_resource(standing).config_schema.config_type.fields
    assert set(fields) == set(Profile.model_fields), "`name` is there as the profile's"
    rounds = fields["rl"].config_type.fields["rounds"]
    assert rounds.config_type.given_name == "Int" and not rounds.is_required
    assert Profile.model_fields["rl"].annotation is not None and str(standing.rl.rounds) in rounds.description
    kinds = {value.config_value for value in fields["engine"].config_type.fields["kind"].config_type.enum_values}
    assert kinds == {"embedded", "http", "served"}


@pytest.mark.parametrize(
    "config", [{"rl": {"round": 8}}, {"rl": {"rounds": "many"}}, {"engine": {"kind": "nope"}}, {"nothing": 1}, {"name": 3}]
)
def test_an_unknown_key_or_a_value_of_another_type_is_refused_before_the_launch(place: Any, config: dict[str, Any]) -> None:
    for job in ("iteration", "rl", "next_iteration"):
        with pytest.raises(dg.DagsterInvalidConfigError):
            validated(config, job)


def test_a_run_works_under_the_profile_and_the_changes_that_it_names(place: Any) -> None:
    assert run_profile.load({}) == profiles.load("smoke"), "the one of the environment"
    changed = run_profile.load({"rl": {"rounds": 8}, "engine": {"kind": "http", "http": {"base_url": "http://127.0.0.1:1/v1"}}})
    assert changed == profiles.load("smoke", {"rl.rounds": 8, "engine.kind": "http", "engine.http.base_url": "http://127.0.0.1:1/v1"})
    assert run_profile.load({"name": "quickstart"}) == profiles.load("quickstart")
    seen: list[Profile] = []

    @dg.asset
    def looks(profile: ProfileResource) -> None:
        seen.append(profile.load())

    resource = run_profile.build_resource(profiles.load("smoke"))
    servers = ["http://10.0.0.2:8421", {"url": "http://10.0.0.3:8421", "token_env": "TOKEN_3"}]
    config = run_profile.run_config("smoke", {"seed": 4, "sandbox.servers": servers})
    assert dg.materialize([looks], resources={"profile": resource}, run_config=config, instance=place.instance).success
    assert [profile.seed for profile in seen] == [4]
    assert [server.token_env for server in seen[0].sandbox.servers] == [None, "TOKEN_3"], "an address or a group"


def test_the_configuration_of_dotted_keys_is_nested() -> None:
    config = run_profile.run_config("smoke", {"rl.rounds": 8, "rl.lr": 0.1, "seed": 1})
    assert run_profile.config_of(config) == {"name": "smoke", "rl": {"rounds": 8, "lr": 0.1}, "seed": 1}
    assert run_profile.same_profile(config) == config
    assert run_profile.run_config(None, {}) == {} == run_profile.same_profile({})


def test_what_no_step_could_work_under_is_refused_before_the_first(place: Any) -> None:
    with pytest.raises(ConfigError, match=r"rl.rounds \(got 0\)"):
        run_profile.of_run(run_profile.run_config(None, {"rl.rounds": 0}))
    with pytest.raises(ConfigError, match=r"trains the specialists pointing, and Dagster .* has pointing, forms"):
        run_profile.of_run(run_profile.run_config(None, {"tasks.rl_domains": ["pointing"], "merge.weights": None}))
