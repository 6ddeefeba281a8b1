"""Linking: finds the parent of a call in its trajectory by the messages and tokens that it shares with earlier calls.

Two prefixes are compared: token ids, which determine shared storage, and messages. Messages are normalised: cache
marks, reasoning, tool-call ids and outer whitespace are ignored, since agents rewrite them. Leading system messages are
compared separately, because some agents write the time into them.

    earlier call   U1 A1 T1            answer A2
    next call      U1 A1 T1 A2 T2      extends      (realigned when the tokens of A2 came back different)
    next call      U1 A1 T1' ...       tail_replaced
    next call      S1                  compacted    (same system, shorter, nothing in common)
    next call      U1 X ...            forked       (something already continues from there)
"""

from core.linking.calls import Call, MessageHasher, letters_of, normal_message, quotes_answer, task_prompt_uid
from core.linking.continuation import Continuation, continuation
from core.linking.forest import TokenForest, shared_prefix
from core.linking.placement import Link, TrajectoryLinks, is_side_task, opens_side_task

__all__ = [
    "Call",
    "Continuation",
    "Link",
    "MessageHasher",
    "TokenForest",
    "TrajectoryLinks",
    "continuation",
    "is_side_task",
    "letters_of",
    "normal_message",
    "opens_side_task",
    "quotes_answer",
    "shared_prefix",
    "task_prompt_uid",
]
