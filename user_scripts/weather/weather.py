"""The weather of a place now, from Open-Meteo, which needs no key."""

from urllib.parse import urlencode
from urllib.request import urlopen
import json

FIELDS = "temperature_2m,wind_speed_10m,relative_humidity_2m"


def now(latitude, longitude):
    query = urlencode({"latitude": latitude, "longitude": longitude, "current": FIELDS})
    with urlopen(f"https://api.open-meteo.com/v1/forecast?{query}", timeout=10) as answer:
        current = json.load(answer)["current"]
    return {
        "time": current["time"],
        "temperatureC": current["temperature_2m"],
        "windKmH": current["wind_speed_10m"],
        "humidityPercent": current["relative_humidity_2m"],
    }
