"""Programs for those who work on Sluice; nothing of the product imports them."""
