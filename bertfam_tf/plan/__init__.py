"""Estimates of a run: parameters, FLOPs, memory, communication, hours and cost."""

from bertfam_tf.plan.layout import GIB, Devices, Plan, StagePlan
from bertfam_tf.plan.planner import flops_per_token, plan, read
from bertfam_tf.plan.table import table

__all__ = ["GIB", "Devices", "Plan", "StagePlan", "flops_per_token", "plan", "read", "table"]
