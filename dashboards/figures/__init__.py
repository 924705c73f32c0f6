"""Charts: functions from what analyses measured to the data that `assets/charts` draws."""
