"""Amaranth components: one per operator of a continuous query, and the parts they share."""
