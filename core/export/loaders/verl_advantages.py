"""An advantage estimator ``planned`` for verl, which uses the plan's advantages from a file with ``rewards=plan``.

Put this file on Python's path, and start verl with it::

    VERL_USE_EXTERNAL_MODULES=verl_advantages python -m verl.trainer.main_ppo algorithm.adv_estimator=planned \
        algorithm.use_kl_in_reward=false skip.rollout.enable=true ...
"""

from typing import Any

from verl.trainer.ppo.core_algos import register_adv_est


@register_adv_est("planned")  # type: ignore[untyped-decorator]
def planned(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Advantages and returns [B, R]: the file's ``rm_scores``, which are the plan's advantages per token."""
    advantages = token_level_rewards * response_mask
    return advantages, advantages
