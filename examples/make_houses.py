"""Makes houses.csv and new_houses.csv beside it: invented houses, with a price that follows their columns and noise."""

from pathlib import Path

import numpy as np
import pandas as pd

CITIES = {"Bern": 9.0, "Oslo": 7.0, "Porto": 3.5, "Turin": 2.5}  # thousands per square metre


def houses(rows, seed):
    random = np.random.default_rng(seed)
    area = random.gamma(6, 18, rows) + 25
    city = random.choice(list(CITIES), rows)
    built = random.integers(1900, 2021, rows)
    garden = random.random(rows) < 0.4
    sold = np.datetime64("2021-01-01") + random.integers(0, 1200, rows)
    per_metre = np.array([CITIES[name] for name in city]) * (0.7 + 0.3 * (built - 1900) / 120)
    price = area**0.9 * per_metre * (1 + 0.12 * garden) * 1.2
    price *= np.exp(random.normal(0, 0.08, rows))  # the larger the price, the larger its noise
    columns = {"area": area.round(1), "city": city, "built": built, "garden": garden, "sold": sold.astype(str)}
    return pd.DataFrame(columns | {"price": (1000 * price).round(-2)})


if __name__ == "__main__":
    here = Path(__file__).parent
    houses(600, seed=0).to_csv(here / "houses.csv", index=False)
    new = houses(12, seed=1).drop(columns="price")
    new.loc[10, ["area", "city"]] = [950.0, "Bern"]  # a castle
    new.loc[11, "city"] = "Lima"  # nobody has seen a house in Lima
    new.to_csv(here / "new_houses.csv", index=False)
