"""The picker on a terminal: keys in, screens out. The only module that knows prompt_toolkit."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point as Place
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from .choices import Choice, Picker
from .layout import Line, Screen, screen
from .loader import Loader, Source

ESCAPE_SECONDS = 0.05
"""How long after Esc the rest of a key's sequence may come; a slow line needs some."""
SWITCH_SECONDS = 0.0005
"""The interpreter's 5 ms, several times a key, could be felt while a large tree is looked at."""
STYLE = {
    "chosen": "reverse",
    "heading": "bold",
    "prompt": "bold",
    "title": "bold",
    "file": "bold",
    "rule": "ansicyan",
    "hunk": "ansicyan",
    "added": "ansigreen",
    "deleted": "ansired",
}


class Picking:
    """Owns one run of the picker: its present moment, its loader and the application."""

    def __init__(
        self, choices: tuple[Choice, ...], previews: Source[Choice, list[Line]], *, colour: bool
    ) -> None:
        self.picker = Picker(choices)
        self.seen: Screen | None = None
        control = FormattedTextControl(self._text, focusable=True, get_cursor_position=self._cursor)
        self.app: Application[Choice | None] = Application(
            layout=Layout(Window(control, wrap_lines=False)),
            key_bindings=self._keys(),
            style=Style.from_dict(STYLE),
            color_depth=ColorDepth.DEPTH_4_BIT if colour else ColorDepth.DEPTH_1_BIT,
            full_screen=True,
            enable_page_navigation_bindings=False,
            before_render=self._check,
        )
        self.app.ttimeoutlen = ESCAPE_SECONDS
        self.loader: Loader[Choice, list[Line]] = Loader(previews, self._told)

    def run(self) -> Choice | None:
        """None if nothing was chosen; Ctrl-C is an interrupt here as everywhere."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            return self.app.run(pre_run=self._begin)
        except EOFError:  # the terminal is gone
            return None
        finally:
            self.loader.close()
            sys.setswitchinterval(interval)

    def _begin(self) -> None:
        """Whoever ends us is to find the terminal as it was."""
        assert self.app.loop is not None
        self.app.loop.add_signal_handler(signal.SIGTERM, self._leave, KeyboardInterrupt())
        self.loader.want(self.picker.chosen)

    def _told(self) -> None:
        """On the loader's thread."""
        self.app.invalidate()

    def _leave(self, why: BaseException) -> None:
        if not self.app.is_done:
            self.app.exit(exception=why)

    # Out

    def _check(self, _: object) -> None:
        """A preview that broke by a mistake of ours ends the picker, and is said as such."""
        if self.loader.failure is not None:
            self._leave(self.loader.failure)

    def _text(self) -> StyleAndTextTuples:
        chosen = self.picker.chosen
        size = self.app.output.get_size()
        preview = self.loader.found(chosen) if chosen else []
        self.seen = screen(self.picker, preview, size.columns, size.rows)
        out: StyleAndTextTuples = []
        for line in self.seen.lines:
            out += [*line, ("", "\n")]
        return out[:-1]

    def _cursor(self) -> Place | None:
        return Place(*self.seen.cursor) if self.seen else None

    # In

    def _to(self, picker: Picker) -> None:
        self.picker = picker
        self.loader.want(picker.chosen)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        self._add_ways_out(keys)
        self._add_moves(keys)
        self._add_typing(keys)
        return keys

    def _add_ways_out(self, keys: KeyBindings) -> None:
        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            if self.picker.chosen:
                event.app.exit(result=self.picker.chosen)
            else:
                event.app.output.bell()

        @keys.add("escape", eager=True)
        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        @keys.add("c-c")
        @keys.add(Keys.SIGINT)
        def _(event: KeyPressEvent) -> None:
            self._leave(KeyboardInterrupt())

        @keys.add("c-z")
        def _(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        @keys.add("c-l")
        def _(event: KeyPressEvent) -> None:
            event.app.renderer.clear()

    def _add_moves(self, keys: KeyBindings) -> None:
        everything = len(self.picker.choices)
        self._move(keys, lambda: -1, "up", "c-p")
        self._move(keys, lambda: 1, "down", "c-n")
        self._move(keys, lambda: -self._page(), "pageup")
        self._move(keys, self._page, "pagedown")
        self._move(keys, lambda: -everything, "home")
        self._move(keys, lambda: everything, "end")
        self._scroll(keys, lambda: -1, "s-up")
        self._scroll(keys, lambda: 1, "s-down")
        self._scroll(keys, lambda: -self._preview_page(), "c-b")
        self._scroll(keys, self._preview_page, "c-f")

    def _page(self) -> int:
        return self.seen.page if self.seen else 1

    def _preview_page(self) -> int:
        return self.seen.preview_page if self.seen else 1

    def _move(self, keys: KeyBindings, by: Callable[[], int], *names: str) -> None:
        for name in names:
            keys.add(name)(lambda _: self._to(self.picker.moved(by())))

    def _scroll(self, keys: KeyBindings, by: Callable[[], int], *names: str) -> None:
        for name in names:
            keys.add(name)(lambda _: self._to(self.picker.scrolled(by(), self._last_scroll())))

    def _last_scroll(self) -> int:
        return self.seen.last_scroll if self.seen else 0

    def _add_typing(self, keys: KeyBindings) -> None:
        @keys.add(Keys.Any)
        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            if event.data == "q" and not self.picker.typed:
                event.app.exit(result=None)
            elif event.key_sequence[0].key == Keys.BracketedPaste or event.data.isprintable():
                self._to(self.picker.with_more(event.data))

        @keys.add("backspace")
        def _(event: KeyPressEvent) -> None:
            self._to(self.picker.without_last())

        @keys.add("c-w")
        def _(event: KeyPressEvent) -> None:
            self._to(self.picker.without_last_word())

        @keys.add("c-u")
        def _(event: KeyPressEvent) -> None:
            self._to(self.picker.filtered(""))
