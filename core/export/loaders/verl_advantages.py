"""verl passes the plan's advantages on as they are: an estimator named ``planned``, for a file of ``rewards=plan``.

Put this file where Python finds it, and start verl with it::

    VERL_USE_EXTERNAL_MODULES=verl_advantages python -m verl.trainer.main_ppo algorithm.adv_estimator=planned \
        algorithm.use_kl_in_reward=false skip.rollout.enable=true ...
"""

from typing import Any

from verl.trainer.ppo.core_algos import register_adv_est


@register_adv_est("planned")  # type: ignore[untyped-decorator]
def planned(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Advantages and returns [B, R]: ``rm_scores`` of the file, which are the plan's advantages by token."""
    advantages = token_level_rewards * response_mask
    return advantages, advantages
