"""The verdict on the whole run: findings in order, headline, attribution of time."""
