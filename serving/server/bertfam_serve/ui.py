"""A small web page on which people try the models of a server.

    page = Page()
    serve("/exports/sentiment", routes=page.routes, ready=lambda running: page.show(running.models))

It uses NiceGUI (the extra ``ui``), which includes its scripts and fonts: the page requests nothing
from other hosts. NiceGUI supports one app per process, so there can be only one page.
"""

import asyncio
import contextlib
import html
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from nicegui import run, ui
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from bertfam_serve import ui_answers
from bertfam_serve.models import Models
from bertfam_serve.ui_html import STYLE, markup
from bertfam_tf.attention_html import attention_html, page
from bertfam_tf.export.runtime.status import ServingError

_PATH = "/ui"
_TIMEOUT_MS = 30_000
_MAX_CHARACTERS = 100_000  # messages of the page's websocket are limited to a million bytes
_PAGE_STYLE = """
body { background: #f1f5f9; }
.card { width: 100%; border-radius: .9rem; padding: 1.4rem 1.6rem; }
"""


class Page:
    """The page at ``/ui/``, to which ``/`` leads.

    Attributes:
        routes: routes for ``Options.routes``.
    """

    _made = False

    def __init__(self) -> None:
        """Raises RuntimeError if there is already a page in this process."""
        if Page._made:
            raise RuntimeError(
                "There is already a page in this process, and NiceGUI supports one app per process."
            )
        Page._made = True
        self._models: Models | None = None
        self._app = FastAPI(openapi_url=None)
        ui.run_with(
            self._app,
            root=self._build,
            title="bertfam",
            favicon="💬",
            show_welcome_message=False,  # which would look up this machine's addresses
        )
        self._started = False
        self._starting = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self.routes: Sequence[BaseRoute] = (
            Route("/", RedirectResponse(f"{_PATH}/")),
            Route(_PATH, RedirectResponse(f"{_PATH}/")),
            Mount(_PATH, self._serve),
        )

    def show(self, models: Models, url: str = "") -> None:
        """Shows these models on the page.

        Args:
            models: the models.
            url: the server's, for a line with the page's address; empty for none.
        """
        self._models = models
        if url:
            print(f"Page at {url}{_PATH}/", flush=True)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # NiceGUI starts with the app's lifespan, which the server's own app does not have.
        async with self._starting:
            if not self._started:
                context = self._app.router.lifespan_context(self._app)
                await self._stack.enter_async_context(context)
                self._started = True
        await self._app(scope, receive, send)

    def _build(self) -> None:
        ui.add_css(STYLE + _PAGE_STYLE)
        ui.colors(primary="#2563eb")
        with ui.column().classes("w-full max-w-3xl mx-auto p-4 gap-4"):
            ui.label("bertfam").classes("text-2xl font-bold text-slate-800")
            if self._models is None or not self._models.names():
                ui.label("No model is served yet.")
                return
            _ModelForm(self._models)


class _ModelForm:
    """Input fields, a button, and the answer."""

    def __init__(self, models: Models) -> None:
        self._models = models
        names = models.names()
        self._name, self._question = names[0], ""
        if len(names) > 1:
            ui.select(names, value=self._name, label="Model", on_change=self._choose).classes(
                "w-60"
            )
        self._form()

    def _choose(self, event: Any) -> None:
        self._name = event.value
        self._form.refresh()

    def _choose_question(self, event: Any) -> None:
        self._question = event.value
        self._form.refresh()

    @ui.refreshable_method
    def _form(self) -> None:
        try:
            version, servable = self._models.find(self._name)
            questions = ui_answers.questions(servable)
            question = self._question if self._question in questions else questions[0]
            fields = ui_answers.input_fields(servable, question)
        except ServingError as error:
            ui.label(error.message)
            return
        ui.label(f"{self._name}, version {version}").classes("text-slate-500")
        if len(questions) > 1:
            ui.select(
                questions, value=question, label="Task", on_change=self._choose_question
            ).classes("w-60")
        with ui.card().classes("card shadow-sm"):
            boxes = {field.name: _box(field) for field in fields}
            button = ui.button("Ask").props("unelevated no-caps").classes("ask")
        shown = ui.card().classes("card shadow-sm result")
        shown.set_visibility(False)

        async def run_model() -> None:
            button.props("loading")
            texts = {name: box.value or "" for name, box in boxes.items()}
            try:
                # Looked up again: there may be a newer version.
                _, current = self._models.find(self._name)
                answer = await run.io_bound(
                    ui_answers.run_example, current, texts, question, timeout_ms=_TIMEOUT_MS
                )
                maps = await run.io_bound(
                    ui_answers.run_attention, current, texts, question, timeout_ms=_TIMEOUT_MS
                )
            except ServingError as error:
                ui.notify(error.message, type="negative", multi_line=True)
                return
            finally:
                button.props(remove="loading")
            if answer is None:  # the server is stopping
                return
            shown.clear()
            with shown:
                _show(answer, maps)
            shown.set_visibility(True)

        button.on_click(run_model)
        for box in boxes.values():
            box.on("keydown.ctrl.enter", run_model)


def _show(answer: ui_answers.Answer, maps: tuple[list[str], list[Any]] | None) -> None:
    """The answer, and in another tab the attention, if there is any."""
    # `markup` escapes all texts.
    content = markup(answer)
    if maps is None:
        ui.html(content, sanitize=False).classes("answer")
        return
    with ui.tabs().props("no-caps align=left") as tabs:
        first, second = ui.tab("Answer"), ui.tab("Attention")
    with ui.tab_panels(tabs, value=first).classes("w-full"):
        with ui.tab_panel(first):
            ui.html(content, sanitize=False).classes("answer")
        with ui.tab_panel(second):
            # A document of its own, whose script cannot reach this one.
            inner = html.escape(page("Attention", attention_html(*maps)), quote=True)
            height = 200 + 22 * len(maps[0])
            ui.html(
                f'<iframe sandbox="allow-scripts" srcdoc="{inner}" '
                f'style="width: 100%; height: {height}px; border: 0"></iframe>',
                sanitize=False,
            ).classes("w-full")


def _box(field: ui_answers.Field) -> ui.textarea:
    label = field.name.replace("_", " ").capitalize()
    label += ", one per line" if field.lines else ""
    box = ui.textarea(label).classes("w-full").props("outlined autogrow")
    return box.props(f'maxlength={_MAX_CHARACTERS} data-field="{field.name}"')
