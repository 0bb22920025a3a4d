"""A small shop's back office: orders, refunds, parcels, and the agents that work on them."""
