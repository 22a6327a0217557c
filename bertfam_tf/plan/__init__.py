"""What a run will take: parameters, FLOPs, memory, communication, hours and cost."""

from bertfam_tf.plan.planner import Devices, Plan, StagePlan, flops_per_token, plan, read, table

__all__ = ["Devices", "Plan", "StagePlan", "flops_per_token", "plan", "read", "table"]
