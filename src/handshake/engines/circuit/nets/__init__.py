"""From plans to circuits as values: nets, their translation, and rules that improve them."""
