"""The OpenAPI document: FastAPI's own for the small routes, and the tensor routes described here by hand,
since no framework sees them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dlcb.server.datatypes import DATATYPES

_JSON = "application/json"
_ERROR_STATUSES = {
    "400": "malformed or illegal; the text names input, axis and rule",
    "401": "a key is missing or unknown",
    "403": "off, or not allowed",
    "404": "no such model or version",
    "405": "another method is expected",
    "408": "the request stopped coming before it was whole",
    "413": "the body is over the limit",
    "429": "the queue is full; see Retry-After",
    "431": "the headers are over the limit",
    "500": "the model failed",
    "503": "not ready",
    "504": "the request's timeout passed",
}
_PARAMETERS = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]},
}
_VERSION = {
    **_PARAMETERS,
    "properties": {"version": {"type": "string", "description": "of several; left out: all of them"}},
}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
    "Tensor": {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"type": "string"},
            "shape": {"type": "array", "maxItems": 32, "items": {"type": "integer", "minimum": 0}},
            "datatype": {"type": "string", "enum": list(DATATYPES)},
            "parameters": _PARAMETERS,
            "data": {"type": "array", "items": {}},
        },
    },
    "Guard": {
        "type": "object",
        "description": "what must hold of the sizes before a launch; else another tier serves",
        "required": ["condition", "reason", "source_line"],
        "properties": {
            "condition": {"type": "string", "description": "over the symbols, for example sequence <= 512"},
            "reason": {"type": "string", "description": "the operator, or the declaration, that needs it"},
            "source_line": {
                "type": "string",
                "description": "file:line of the model; empty for a declaration",
            },
        },
    },
    "Coverage": {
        "type": "object",
        "required": [
            "name",
            "version",
            "inputs",
            "values",
            "symbols",
            "equalities",
            "guards",
            "batch",
            "batching",
        ],
        "properties": {
            "name": {"type": "string"},
            "version": {"type": "string"},
            "inputs": {"type": "object", "description": "each input's shape, in symbols"},
            "values": {
                "type": "object",
                "description": "half-open ranges that probes and the check at load draw from; requests are "
                "not held to them: an index outside its table is a 400 by itself",
            },
            "symbols": {"type": "object", "description": "each free size: range, multiple, reason, axes"},
            "equalities": {"type": "array", "items": _TEXTS, "description": "axes that must agree"},
            "guards": {"type": "array", "items": {"$ref": "#/components/schemas/Guard"}},
            "batch": {"type": ["string", "null"], "description": "the size along which requests are stacked"},
            "batching": {
                **_TEXTS,
                "description": "what was proven and declared about requests that wait together",
            },
            "padding": {"type": "object", "description": "sizes that are padded, and why the others are not"},
            "tier": {"type": ["string", "null"]},
            "kernels": {**_TEXTS, "description": "of a model of any rank: those of all ranks below"},
            "ranks": {
                "type": ["array", "null"],
                "items": {"type": "object"},
                "description": "of a model of any rank: those of its inputs that a worker has compiled, each "
                "with its kernels; null for other models",
            },
        },
    },
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": _PARAMETERS,
            "inputs": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Tensor"}},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
                },
            },
        },
    },
    "InferResponse": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
        },
    },
}
_ANSWERS = {"/v1/models/{name}/coverage": "Coverage"}
_BODIES: dict[str, Any] = {
    "/v2/repository/index": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    "/v2/repository/models/{name}/load": {"type": "object", "properties": {"parameters": _VERSION}},
    "/v2/repository/models/{name}/unload": {"type": "object", "properties": {"parameters": _VERSION}},
    "/v1/models/{name}/plan": {
        "type": "object",
        "required": ["shapes"],
        "properties": {
            "shapes": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            }
        },
    },
}


def document(web: FastAPI) -> dict[str, Any]:
    """The whole document, made once."""
    if web.openapi_schema is None:
        schema = get_openapi(title=web.title, version=web.version, routes=web.routes)
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        components.clear()  # FastAPI's validation errors, which never leave this server
        components.update(_SCHEMAS)
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"] = {"200": {"description": "done"}, **_errors()}
                if path in _ANSWERS:
                    answer = {"schema": {"$ref": f"#/components/schemas/{_ANSWERS[path]}"}}
                    operation["responses"]["200"]["content"] = {_JSON: answer}
                if path in _BODIES:
                    operation["requestBody"] = {"content": {_JSON: {"schema": _BODIES[path]}}}
        for path, names in (
            ("/v1/models/{name}/infer", ["name"]),
            ("/v2/models/{name}/infer", ["name"]),
            ("/v2/models/{name}/versions/{version}/infer", ["name", "version"]),
        ):
            schema["paths"][path] = {"post": _infer(names)}
        web.openapi_schema = schema
    return web.openapi_schema


def _infer(names: list[str]) -> dict[str, Any]:
    request = {"schema": {"$ref": "#/components/schemas/InferRequest"}}
    answer = {"schema": {"$ref": "#/components/schemas/InferResponse"}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    return {
        "tags": ["inference"],
        "summary": "Run a model on one request",
        "description": "JSON, or the binary tensor extension: Inference-Header-Content-Length bytes of JSON, "
        "then the tensors that carry binary_data_size, little-endian and row-major. JSON has no NaN and no "
        "infinity: in a JSON answer they are null, in a JSON request a 400; binary tensors carry them.",
        "parameters": parameters,
        "requestBody": {"required": True, "content": {_JSON: request}},
        "responses": {"200": {"description": "the outputs", "content": {_JSON: answer}}, **_errors()},
    }


def _errors() -> dict[str, Any]:
    body = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": text, "content": body} for status, text in _ERROR_STATUSES.items()}
