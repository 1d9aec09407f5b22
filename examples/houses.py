"""Which houses a person should value, from predictions.csv of `stein predict`.

docs/tutorial/houses.md explains it, and has the two commands that come before.
"""

import csv
from pathlib import Path

with Path("examples/new_houses.csv").open() as file:
    houses = list(csv.DictReader(file))
with Path("predictions.csv").open() as file:
    predictions = list(csv.DictReader(file))

for house, said in zip(houses, predictions, strict=True):
    price, low, high = (float(said[name]) for name in ("mean", "low_90", "high_90"))
    doubt = (high - low) / 2 / price
    if said["unusual"] == "true" or said["notes"]:
        decision = f"a person: {said['notes'] or 'unlike the houses of the table'}"
    elif doubt > 0.2:
        decision = f"a person: ± {doubt:.0%} is too wide"
    else:
        decision = f"offer at {price:,.0f}"
    print(f"{house['area']:>6} m² in {house['city']:5}  {decision}")
