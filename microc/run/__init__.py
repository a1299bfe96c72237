"""Run networks: on boards, on this computer, in reference frameworks; measure, compare, evaluate."""
