"""The language of continuous queries, as sqlglot reads it: Spark's SQL with Glacier's streams and windows.

CREATE INPUT STREAM name (field type, …) [TIMESTAMP BY field [IN unit]] [LATENESS seconds];
CREATE INPUT STREAM name (field type, …) FROM mux WHERE field = constant [TIMESTAMP BY …];
SELECT … FROM stream [window], … WHERE … GROUP BY … INTO name;

A window is one of these; a length is `10 SECONDS`, `5 TUPLES`, or a number of seconds:
[SIZE k ADVANCE l TIME|TUPLES]  [SIZE length ADVANCE length]  [TUMBLE length]  [HOP length SIZE length]
[CUMULATE length SIZE length]  [SESSION length]  [NOW]
Behind the lengths there may be OFFSET length, OFFSET FIRST, or PARTIAL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import TokenType, exp

from handshake.plan.dialect import Predicate, as_written
from handshake.windows import UNIT_WORDS

_SPARK_NAMES = ("APPROX_PERCENTILE", "COLLECT_LIST", "COLLECT_SET", "LISTAGG", "PERCENTILE",
                "PERCENTILE_APPROX", "PERCENTILE_CONT", "PERCENTILE_DISC", "STRING_AGG")  # fmt: skip
_AGGREGATES = [kind for kind in exp.ALL_FUNCTIONS if issubclass(kind, exp.AggFunc)]
AGGREGATE_NAMES = frozenset((*(name for kind in _AGGREGATES for name in kind.sql_names()), *_SPARK_NAMES))
"""Functions of many rows that sqlglot knows, in upper case."""


class CreateStream(exp.Expression):  # type: ignore[misc, unused-ignore]
    """CREATE INPUT STREAM."""

    arg_types: ClassVar[dict[str, bool]] = {
        "this": True,
        "expressions": True,
        "mux": False,
        "condition": False,
        "time": False,
        "unit": False,
        "lateness": False,
    }


class FieldDefinition(exp.Expression):  # type: ignore[misc, unused-ignore]
    """A field of a stream: its name, its type's name, and the sizes in parentheses."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "kind": True, "expressions": False}


class Slide(exp.Expression):  # type: ignore[misc, unused-ignore]
    """A window in brackets: its form in lower case, its lengths, and whether TIME is behind them."""

    arg_types: ClassVar[dict[str, bool]] = {
        "form": True,
        "this": False,
        "advance": False,
        "timed": False,
        "offset": False,
        "partial": False,
    }


class Length(exp.Expression):  # type: ignore[misc, unused-ignore]
    """A number with its unit as written: of time, `tuples`, or None; that of an OFFSET may be negative."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "unit": False, "minus": False}


_WINDOW = "[SIZE 600 ADVANCE 60 TIME] or [SIZE 4 ADVANCE 1 TUPLES]"
_FORMS = (
    f"{_WINDOW}, [TUMBLE 10 MINUTES], [HOP 1 MINUTE SIZE 10 MINUTES], [CUMULATE 1 MINUTE SIZE 1 HOUR] or "
    "[SESSION 30 SECONDS]"
)
_COUNTED = ("tuple", "tuples", "row", "rows")
_END_OF_TABLE = (
    TokenType.COMMA,
    TokenType.WHERE,
    TokenType.GROUP_BY,
    TokenType.INTO,
    TokenType.R_PAREN,
    TokenType.UNION,
    TokenType.SEMICOLON,
    TokenType.L_BRACKET,
    TokenType.MATCH_CONDITION,
)


class Continuous(Predicate):
    """The dialect of continuous queries."""

    class Tokenizer(Predicate.Tokenizer):
        KEYWORDS: ClassVar[dict[str, Any]] = {
            **Predicate.Tokenizer.KEYWORDS,
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,
        }

    class Parser(Predicate.Parser):
        ADD_JOIN_ON_TRUE: ClassVar[bool] = False
        ID_VAR_TOKENS: ClassVar[set[TokenType]] = Predicate.Parser.ID_VAR_TOKENS | {TokenType.MATCH_CONDITION}
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
            **Predicate.Parser.FUNCTIONS,
            **{name: as_written(name) for name in AGGREGATE_NAMES},
        }
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: parse
            for name, parse in Predicate.Parser.FUNCTION_PARSERS.items()
            if name not in AGGREGATE_NAMES
        }
        # any(x) and some(x) are aggregates; there are no sub-queries to compare with
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: parse for name, parse in Predicate.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name != "ANY"
        }
        SUBQUERY_PREDICATES: ClassVar[dict[TokenType, Any]] = {
            token: kind for token, kind in Predicate.Parser.SUBQUERY_PREDICATES.items() if kind is not exp.Any
        }
        QUERY_MODIFIER_PARSERS: ClassVar[dict[TokenType, Callable[..., Any]]] = {
            **Predicate.Parser.QUERY_MODIFIER_PARSERS,
            TokenType.INTO: lambda self: ("into", self._parse_into()),
        }

        def _parse_join_parts(self) -> Any:
            """Parse the words before JOIN; Spark writes LEFT ASOF JOIN, others ASOF LEFT JOIN."""
            method, side, kind = super()._parse_join_parts()
            if method is None and self._match(TokenType.ASOF):
                method = self._prev
            return method, side, kind

        def _parse_wrapped(self, parse_method: Callable[[], Any], optional: bool = False) -> Any:
            """Parse parentheses; those of MATCH_CONDITION may hold any condition, which is refused later."""
            if self._prev.token_type == TokenType.MATCH_CONDITION:
                parse_method = self._parse_disjunction
            return super()._parse_wrapped(parse_method, optional)

        def _parse_create(self) -> Any:
            start = self._prev
            if not self._match_text_seq("INPUT", "STREAM"):
                self.raise_error("CREATE makes an INPUT STREAM here", self._curr or start)
            node = CreateStream(this=self._parse_name("the name of a stream"))
            self._match_l_paren()
            node.set("expressions", self._parse_csv(self._parse_field_definition))
            self._match_r_paren()
            self._parse_stream_options(node)
            return self._at(node, start)

        def _parse_stream_options(self, node: exp.Expr) -> None:
            if self._match(TokenType.FROM):
                node.set("mux", self._parse_name("the input that carries the stream"))
                if not self._match(TokenType.WHERE):
                    self.raise_error(
                        "WHERE must say which tuples are this stream's, as in WHERE MsgType = 68"
                    )
                condition = self._parse_disjunction()
                if condition is None:
                    self.raise_error("a condition is missing, as in WHERE MsgType = 68", self._prev)
                node.set("condition", condition)
            if self._match_text_seq("TIMESTAMP"):
                if not self._match_text_seq("BY"):
                    self.raise_error("write TIMESTAMP BY and the field with the tuples' times")
                node.set("time", self._parse_name("the field with the tuples' times"))
                if self._match_text_seq("IN"):
                    node.set("unit", self._parse_name("a unit, such as MICROSECONDS"))
            if self._match_text_seq("LATENESS"):
                node.set("lateness", self._parse_number_of("LATENESS takes a number of seconds"))

        def _parse_field_definition(self) -> Any:
            start = self._curr
            name = self._parse_name("the name of a field")
            kind = self._curr
            if kind.token_type in (TokenType.COMMA, TokenType.R_PAREN):
                self.raise_error(f"field '{name.name}' has no type", kind or start)
            self._advance()
            sizes = []
            if self._match(TokenType.L_PAREN):
                sizes = self._parse_csv(lambda: self._parse_number_of("a type's size is a number"))
                self._match_r_paren()
            node = FieldDefinition(this=name, kind=kind.text, expressions=sizes)
            return self._at(node, start)

        def _parse_name(self, what: str) -> Any:
            start = self._curr
            name = self._parse_id_var(any_token=True)
            if not isinstance(name, exp.Identifier):
                self.raise_error(f"{what} is missing", start or self._prev)
            return self._at(name, start)

        def _parse_number_of(self, what: str) -> Any:
            number = self._parse_primary()
            if not isinstance(number, exp.Literal) or number.is_string:
                self.raise_error(what, self._curr or self._prev)
            return number

        def _at(self, node: Any, token: Any) -> Any:
            if token is not None:
                node.meta["start"] = token.start
            return node

        def _parse_table(self, *args: Any, **options: Any) -> Any:
            """Parse a stream or a sub-query with its window and alias."""
            start = self._curr
            this = self._parse_stream_or_query()
            self._at(this, start)
            window = self._parse_slide()
            if self._curr.token_type not in _END_OF_TABLE:
                alias = self._parse_table_alias()
                if alias is not None:
                    this.set("alias", alias)
            this.set("slide", window or self._parse_slide())
            return this

        def _parse_stream_or_query(self) -> Any:
            if not self._match(TokenType.L_PAREN):
                return exp.Table(this=self._parse_name("a stream or a query in parentheses"))
            query = self._parse_select()
            if query is None:
                self.raise_error("a query in parentheses is needed here", self._curr or self._prev)
            self._match_r_paren()
            return exp.Subquery(this=query)

        def _parse_slide(self) -> Any:
            start = self._curr
            if not self._match(TokenType.L_BRACKET):
                return None
            if not self._match_texts(("SIZE", "TUMBLE", "HOP", "CUMULATE", "SESSION", "NOW")):
                self.raise_error(f"a window is {_FORMS}", self._curr or start)
            form = self._prev.text.lower()
            node = Slide(form=form)
            if form in ("hop", "cumulate"):
                name = form.upper()
                node.set("advance", self._parse_length(name))
                if not self._match_text_seq("SIZE"):
                    self.raise_error(
                        f"{name} needs a SIZE, as in [{name} 1 MINUTE SIZE 10 MINUTES]", self._curr
                    )
            if form != "now":
                node.set("this", self._parse_length(self._prev.text.upper()))
                if form == "size":
                    self._parse_size(node)
                self._parse_window_options(node)
            if not self._match(TokenType.R_BRACKET):
                self.raise_error(
                    "a window ends with ] behind lengths such as 30 SECONDS or 5 TUPLES", self._curr or start
                )
            return self._at(node, start)

        def _parse_size(self, node: exp.Expr) -> None:
            """Parse ADVANCE and TIME; one unit, or TIME, is for both lengths."""
            if self._match_text_seq("ADVANCE"):
                node.set("advance", self._parse_length("ADVANCE"))
            if self._match_text_seq("TIME"):
                node.set("timed", True)
            elif not any(length.args.get("unit") for length in node.find_all(Length)):
                self.raise_error(f"TIME or TUPLES is missing; a window is {_WINDOW}", self._curr)

        def _parse_window_options(self, node: exp.Expr) -> None:
            if self._match_text_seq("PARTIAL"):
                node.set("partial", True)
            elif self._match_text_seq("OFFSET"):
                first = self._match_text_seq("FIRST")
                node.set("offset", "first" if first else self._parse_length("OFFSET"))

        def _parse_length(self, of: str) -> Any:
            start = self._curr
            minus = of == "OFFSET" and self._match(TokenType.DASH)
            wanted = "a number, or FIRST" if of == "OFFSET" else "a number"
            node = Length(this=self._parse_number_of(f"{of} takes {wanted}"), minus=bool(minus))
            word = self._curr.text.lower() if self._curr else ""
            if word in _COUNTED or word in UNIT_WORDS:
                node.set("unit", "tuples" if word in _COUNTED else word)
                self._advance()
            return self._at(node, start)

        def _parse_into(self) -> Any:
            if not self._match(TokenType.INTO):
                return None
            start = self._curr
            return self._at(exp.Into(this=self._parse_name("the name of the result")), start)
