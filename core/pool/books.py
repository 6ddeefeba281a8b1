"""What ``Pool`` keeps and answers beside steps and opinions, one part per file."""

from __future__ import annotations

from core.pool.adopting import Adoption
from core.pool.agreement import Agreement
from core.pool.console import Console
from core.pool.integrity import Integrity
from core.pool.rewards import RewardBook
from core.pool.upkeep import Upkeep
from core.pool.versions import VersionBook


class Books(Console, VersionBook, RewardBook, Adoption, Agreement, Integrity, Upkeep):
    """SQL, dataset versions, reward policies, reviewers, upkeep."""
