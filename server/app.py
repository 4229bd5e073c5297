"""The routes as a list. Tensor routes go straight to their handler; everything else is a small FastAPI
application, whose errors have the protocol's form as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, cast

import orjson
from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from dlcb.compiler import RequestError
from dlcb.server.access import Access
from dlcb.server.dataplane import Dataplane
from dlcb.server.endpoints import Endpoints
from dlcb.server.errors import BadRequest, ServerError
from dlcb.server.metrics import Metrics
from dlcb.server.openapi import document
from dlcb.server.settings import Server
from dlcb.server.tensors import Receive, Scope, Send, TensorRoutes, failure, read_body

SMALL_BODY = 1 << 20  # bytes of a body that is not tensors

Name = Annotated[str, Path(description="a registered model")]
Version = Annotated[str, Path(description="one of its versions")]


class Application:
    """The ASGI application uvicorn runs. `ready` tells whether the server takes requests."""

    def __init__(
        self, dataplane: Dataplane, metrics: Metrics, settings: Server, ready: Callable[[], bool]
    ) -> None:
        self.tensors = TensorRoutes(dataplane, metrics, settings)
        self.web = web_application(
            Endpoints(dataplane.registry, bool(settings.keys.admin)), metrics, settings, ready
        )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            place = self.tensors.match(scope["path"])
            if place is not None:
                return self.tensors(scope, receive, send, *place)
            if scope["method"] == "HEAD":  # as GET; the connection leaves the body out
                scope = {**scope, "method": "GET"}
        return self.web(scope, receive, send)  # type: ignore[arg-type]


def web_application(  # noqa: PLR0915 - a list of routes, one short function each
    endpoints: Endpoints, metrics: Metrics, settings: Server, ready: Callable[[], bool]
) -> FastAPI:
    """Every route but inference."""
    web = FastAPI(title="dlcb", docs_url="/docs", redoc_url=None, openapi_url="/openapi.json")
    access = Access(settings.keys)

    async def admin(request: Request) -> None:
        if settings.keys.admin:  # without any, the routes themselves say that they are off
            access.check_admin(dict(request.scope["headers"]))

    async def body(request: Request) -> Any:
        """The JSON body; nothing sent is an empty object."""
        data = await read_body(cast(Receive, request.receive), SMALL_BODY)
        try:
            return orjson.loads(data) if data.strip() else {}
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from error

    def reply(value: Any, status: int = 200) -> Response:
        return Response(orjson.dumps(value), status, media_type="application/json")

    @web.get("/", tags=["server"])
    async def root() -> Response:
        return reply(endpoints.root())

    @web.get("/v2", tags=["server"])
    async def server_metadata() -> Response:
        return reply(endpoints.server())

    @web.get("/v2/health/live", tags=["health"])
    async def live() -> Response:
        return reply({"live": True})

    @web.get("/v2/health/ready", tags=["health"])
    async def server_ready() -> Response:
        now = ready()
        return reply({"ready": now}, 200 if now else 503)

    @web.get("/v2/models", tags=["models"])
    @web.get("/v1/models", tags=["models"])
    async def models() -> Response:
        return reply(endpoints.models())

    @web.get("/v2/models/stats", tags=["statistics"])
    async def all_statistics() -> Response:
        return reply(endpoints.statistics())

    @web.get("/v2/models/{name}", tags=["models"])
    @web.get("/v1/models/{name}", tags=["models"])
    async def metadata(name: Name) -> Response:
        return reply(endpoints.metadata(name))

    @web.get("/v2/models/{name}/versions/{version}", tags=["models"])
    async def version_metadata(name: Name, version: Version) -> Response:
        return reply(endpoints.metadata(name, version))

    @web.get("/v2/models/{name}/ready", tags=["health"])
    async def model_ready(name: Name) -> Response:
        status, value = endpoints.model_ready(name)
        return reply(value, status)

    @web.get("/v2/models/{name}/versions/{version}/ready", tags=["health"])
    async def version_ready(name: Name, version: Version) -> Response:
        status, value = endpoints.model_ready(name, version)
        return reply(value, status)

    @web.get("/v2/models/{name}/config", tags=["models"])
    async def config(name: Name) -> Response:
        return reply(endpoints.config(name))

    @web.get("/v2/models/{name}/versions/{version}/config", tags=["models"])
    async def version_config(name: Name, version: Version) -> Response:
        return reply(endpoints.config(name, version))

    @web.get("/v2/models/{name}/stats", tags=["statistics"])
    async def statistics(name: Name) -> Response:
        return reply(endpoints.statistics(name))

    @web.get("/v2/models/{name}/versions/{version}/stats", tags=["statistics"])
    async def version_statistics(name: Name, version: Version) -> Response:
        return reply(endpoints.statistics(name, version))

    @web.get("/v1/models/{name}/coverage", tags=["compiler"])
    async def coverage(name: Name) -> Response:
        return reply(await endpoints.coverage(name))

    @web.get("/v1/models/{name}/explain", tags=["compiler"])
    async def explain(name: Name) -> Response:
        return reply(endpoints.explain(name))

    @web.post("/v1/models/{name}/plan", tags=["compiler"])
    async def plan(name: Name, request: Request) -> Response:
        return reply(await endpoints.plan(name, await body(request)))

    @web.post("/v2/repository/index", tags=["repository"])
    async def index(request: Request) -> Response:
        return reply(await endpoints.index(await body(request)))

    @web.post("/v2/repository/models/{name}/load", tags=["repository"], dependencies=[Depends(admin)])
    async def load(name: Name, request: Request) -> Response:
        await endpoints.load(name, await body(request))
        return reply({})

    @web.post("/v2/repository/models/{name}/unload", tags=["repository"], dependencies=[Depends(admin)])
    async def unload(name: Name, request: Request) -> Response:
        await endpoints.unload(name, await body(request))
        return reply({})

    @web.get("/metrics", tags=["server"])
    async def scrape() -> Response:
        return Response(await metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def refused(what: str) -> Callable[[], Any]:
        async def refuse() -> None:
            endpoints.refuse(what)

        return refuse

    for path, what in (
        ("/v2/trace/setting", "tracing"),
        ("/v2/models/{name}/trace/setting", "tracing"),
        ("/v2/logging", "changing the log's settings"),
        ("/v2/systemsharedmemory/{rest:path}", "system shared memory"),
        ("/v2/cudasharedmemory/{rest:path}", "CUDA shared memory"),
        ("/v2/models/{name}/generate", "the generate extension"),
        ("/v2/models/{name}/generate_stream", "the generate extension"),
    ):
        web.add_api_route(path, refused(what), methods=["GET", "POST"], include_in_schema=False)

    async def known(_request: Request, error: Exception) -> Response:
        status, fields, data = failure(error)
        return Response(b"".join(data), status, {key.decode(): value.decode() for key, value in fields})

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow")
        text = {
            404: f"there is no path '{request.url.path[:200]}'; GET / says where to go on",
            405: f"'{request.url.path[:200]}' takes {allowed or 'another method'}, found {request.method}",
        }
        value = {"error": text.get(error.status_code, str(error.detail))}
        return Response(orjson.dumps(value), error.status_code, error.headers, "application/json")

    async def invalid(_request: Request, error: Exception) -> Response:
        return reply({"error": f"the request is not valid: {error}"[:500]}, 400)

    for kind in (ServerError, RequestError, Exception):  # the last: a fault of ours, which the log has
        web.add_exception_handler(kind, known)
    web.add_exception_handler(HTTPException, http_error)
    web.add_exception_handler(RequestValidationError, invalid)
    web.openapi = lambda: document(web)  # type: ignore[method-assign]
    return web
