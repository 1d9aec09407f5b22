"""What the server says about itself: an OpenAPI document for the run's own columns, and a page that shows it."""

import html
import json
import sys
from typing import Any

from stein import __version__
from stein.serve.rows import Predictor, usual
from stein.tables import Column

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""The page loads nothing, from nowhere."""
NUMBER = {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}
_KINDS: dict[str, list[dict[str, Any]]] = {
    "number": [NUMBER],
    "boolean": [{"type": "boolean"}],
    "date": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}],
    "text": [{"type": "string"}],
}


def document(predictor: Predictor, most_bytes: int, most_rows: int) -> dict[str, Any]:
    """The OpenAPI document (version 3.1) of a run."""
    target = predictor.finished.target
    body = {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {"rows": {"type": "array", "minItems": 1, "maxItems": most_rows, "items": _row(predictor)}},
    }
    errors = {
        "400": "the body is not JSON",
        "408": "the body did not arrive in time",
        "413": f"the body is larger than {most_bytes} bytes",
        "415": "the content type is not application/json",
        "422": "the rows are not as described",
        "503": "too many rows are waiting, or the server stops",
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Predictions of {target!r}", "version": __version__, "description": _words(predictor)},
        "paths": {
            "/predict": {
                "post": {
                    "operationId": "predict",
                    "summary": "Predict rows; they are answered in order",
                    "requestBody": {"required": True, **_json(body)},
                    "responses": {
                        "200": {"description": "a prediction per row", **_json(_answer(predictor))},
                        **{code: {"description": words, **_json(_ERROR)} for code, words in errors.items()},
                    },
                }
            },
            "/health": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether the server takes requests",
                    "responses": {
                        "200": {"description": "it does", **_json(_HEALTH)},
                        "503": {"description": "it stops", **_json(_HEALTH)},
                    },
                }
            },
        },
    }


_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_HEALTH = {
    "type": "object",
    "required": ["status", "target", "coverage", "version"],
    "properties": {
        "status": {"enum": ["ok", "stopping"]},
        "target": {"type": "string"},
        "coverage": {"type": "number"},
        "version": {"type": "string"},
    },
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _words(predictor: Predictor) -> str:
    return (
        f"An ensemble of stein for {predictor.finished.target!r}, with intervals or sets of coverage "
        f"{predictor.coverage:g}. A column that is not there, or null, is filled in as in training, and `notes` says "
        "so; other columns are ignored."
    )


def _row(predictor: Predictor) -> dict[str, Any]:
    recipe = predictor.finished.recipe
    if recipe is None:
        row: dict[str, Any] = NUMBER
        for length in reversed(predictor.finished.shape):
            row = {"type": "array", "minItems": length, "maxItems": length, "items": row}
        return row
    return {
        "type": "object",
        "properties": {column.name: _value(column) for column in recipe.columns},
        "anyOf": [{"required": [column.name]} for column in recipe.columns],
        "additionalProperties": True,
    }


def _value(column: Column) -> dict[str, Any]:
    values = [*_KINDS[column.kind], {"type": "null"}]
    return {"description": column.described, "anyOf": values, "examples": [usual(column)]}


def _answer(predictor: Predictor) -> dict[str, Any]:
    types = {bool: ["boolean"], str: ["string"], float: ["number", "null"]}  # JSON has no infinity
    properties = {name: {"type": types[type(value)]} for name, value in predictor.example.items()}
    row = {"type": "object", "required": list(properties), "properties": properties, "additionalProperties": False}
    return {
        "type": "object",
        "required": ["predictions", "warnings"],
        "additionalProperties": False,
        "properties": {
            "predictions": {"type": "array", "items": row},
            "warnings": {"type": "array", "items": {"type": "string"}},
        },
    }


# -- the page -----------------------------------------------------------------------------------------------


def page(document: dict[str, Any]) -> str:
    """The document as one page of HTML that loads nothing: the columns, an example to try, and the answers."""
    post = document["paths"]["/predict"]["post"]
    rows = post["requestBody"]["content"]["application/json"]["schema"]["properties"]["rows"]
    columns = rows["items"].get("properties", {})
    answer = post["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["predictions"]["items"]
    example = {"rows": [{name: value["examples"][0] for name, value in columns.items()} or _zeros(rows["items"])]}
    about = document["info"]
    listed = "".join(_line(name, value["description"]) for name, value in columns.items())
    answers = "".join(_line(name, " or ".join(value["type"])) for name, value in answer["properties"].items())
    codes = "".join(_line(code, response["description"]) for code, response in post["responses"].items())
    return _PAGE.format(
        title=html.escape(about["title"]),
        about=html.escape(about["description"]),
        columns=listed or _line("rows", "arrays of numbers, in the order of training"),
        most=rows["maxItems"],
        answers=answers,
        codes=codes,
        example=html.escape(json.dumps(example, indent=2)),
    )


def _line(name: str, words: str) -> str:
    return f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(words)}</td></tr>\n"


def _zeros(row: dict[str, Any]) -> Any:
    return [_zeros(row["items"])] * row["minItems"] if row["type"] == "array" else 0


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
td {{ padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; overflow-wrap: anywhere; }}
textarea, pre {{ box-sizing: border-box; width: 100%; font: 14px/1.4 monospace; white-space: pre-wrap; }}
textarea {{ height: 14rem; }}
</style>
<h1>{title}</h1>
<p>{about}</p>
<h2>POST /predict</h2>
<p>The body is JSON: an object with a list <code>rows</code>, from 1 to {most}, each with these columns:</p>
<table>{columns}</table>
<h2>Try it</h2>
<p><textarea id="body" aria-label="the body of the request">{example}</textarea></p>
<p><button id="send">Send</button></p>
<pre id="answer"></pre>
<h2>The answer</h2>
<p>One object in <code>predictions</code> per row, and <code>warnings</code> about the columns:</p>
<table>{answers}</table>
<h2>Status codes</h2>
<table>{codes}</table>
<p><code>GET /health</code> answers 200 while the server takes requests. <a href="openapi.json">openapi.json</a> is this
page for programs.</p>
<script>
document.getElementById("send").onclick = async () => {{
  const body = document.getElementById("body").value;
  const shown = document.getElementById("answer");
  try {{
    const answer = await fetch("predict", {{method: "POST", headers: {{"content-type": "application/json"}}, body}});
    shown.textContent = JSON.stringify(await answer.json(), null, 2);
  }} catch (error) {{ shown.textContent = String(error); }}
}};
</script>
</html>
"""
