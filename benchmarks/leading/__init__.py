"""Coordinators in processes of their own, and elections: their cost, and kills of leaders."""
