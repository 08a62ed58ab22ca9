"""Recipe files described once, by pydantic models: how they are validated, and the JSON schema for editors.

    document --validate--> RecipeFile --DatasetRecipe.from_dict--> recipe
        `----> all problems at once, each with its place: "instructions[0].where: ..."

The options of built-in steps come from ``registry.STEPS``, those of registered ones from the signature of the function;
a file cannot name anything to import. Relative paths are relative to the file.

Editors complete names and mark mistakes while one types: write the schema beside the recipes once,
``poolish bake --schema > recipe.schema.json``, and refer to it from the first line:

    YAML    # yaml-language-server: $schema=recipe.schema.json
    TOML    #:schema recipe.schema.json
    JSON    {"$schema": "recipe.schema.json", "name": ...}

What the schema refuses ``validate`` refuses; ``validate`` sees more, such as the grammar of expressions.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, WithJsonSchema, create_model, model_validator

from poolish import seeds
from poolish.errors import PoolishError, RecipeError
from poolish.files import StorageOptions
from poolish.printable import suggestion
from poolish.recipes.description import INGREDIENT, RECIPE, STEP
from poolish.recipes.file_values import (
    COUNT,
    EXPRESSION,
    KINDS,
    TABLE,
    TEXT,
    Entry,
    Kind,
    Problems,
    Reading,
    Schema,
    by_rule,
    check_depth,
    described,
    joined,
    key_named,
    kind_of,
    named,
    or_null,
    plain_value,
    reading_of,
    short,
    unknown_key,
    validated,
    where_value,
    wrong,
    wrong_here,
    wrong_inside,
)
from poolish.recipes.plan import ON_SHORT, UNITS, check_amount, check_pick, check_total, check_unit, taken_name
from poolish.recipes.serialization import listed, path_in, read
from poolish.recipes.steps.registry import STEPS, Option, built_in, is_registered, registered, registered_names

VERSION = 1
#: Recipes that one file may bring along, and how deep: files that name each other twice would double with each level.
MAX_FILES, MAX_LEVELS = 256, 16


def validate(
    document: Any, *, source: str = "recipe", folder: str | None = None, files: tuple[str, ...] = ()
) -> RecipeFile:
    """The recipe in a document; a RecipeError lists all problems, each with its place.

    >>> validate({"name": "few", "instructions": [{"step": "few", "use": "limit", "m": 10}]})
    Traceback (most recent call last):
    poolish.errors.RecipeError: recipe: 2 problems
      instructions[0]: no key 'm' here; there are step, use, where, version, n
      instructions[0]: 'n' is missing: how many rows stay
    """
    check_depth(document, source)
    try:
        found: RecipeFile = validated(RecipeFile, document, Reading(folder, files))
        return found
    except Problems as problems:
        raise RecipeError(listed(source, problems.texts())) from None


def _amount(key: str, schema: Schema) -> Kind:
    """A quantity of an ingredient, with the rule of ``add_ingredient``."""

    def rule(value: Any, known: Mapping[str, Any]) -> None:
        if value is not None:
            check_amount(f"ingredient {known.get('ingredient', '')!r}", **{key: value})

    return by_rule(rule, schema)


def _batched(value: Any, known: Mapping[str, Any]) -> None:
    if value not in (False, True, "arrow", "columns"):
        raise RecipeError(f"batched={short(value)}: one of false, true (a table), 'columns'")


def _reference(name: str) -> Schema:
    """A schema that ``json_schema`` replaces by a reference."""
    return {"refers to": name}


# Tables -------------------------------------------------------------------------------------------------------------


def _source(value: Any, info: ValidationInfo) -> Any:
    """Paths as this process can open them, or the recipe that is the source."""
    folder = reading_of(info).folder
    if isinstance(value, str) and value:
        return path_in(value, folder)
    if isinstance(value, list) and value and all(isinstance(path, str) and path for path in value):
        return [path_in(path, folder) for path in value]
    if not isinstance(value, Mapping) or "recipe" not in value:
        raise wrong(f"a source is a path, a list of paths, or {{recipe: ...}}, got {short(value)}")
    problems = [("", unknown_key(key, ["recipe"])) for key in value if key != "recipe"]
    nested, recipe = value["recipe"], None
    is_file = isinstance(nested, str)
    try:
        recipe = _included(nested, reading_of(info)) if is_file else validated(RecipeFile, nested, reading_of(info))
    except Problems as inner:
        problems += [(joined(f": {nested}" if is_file else "recipe", place), text) for place, text in inner.problems]
    if problems:
        raise wrong_inside(Problems(problems))
    return recipe


def _included(path: str, reading: Reading) -> Any:
    """The recipe of another file."""
    found = os.path.realpath(path_in(path, reading.folder))
    reading.n_files[0] += 1
    if found in reading.files:
        raise wrong(f"{path} is this recipe itself, or has it as an ingredient; a recipe cannot be made of itself")
    if len(reading.files) >= MAX_LEVELS or reading.n_files[0] > MAX_FILES:
        raise wrong(f"{path}: more than {MAX_LEVELS} recipes in each other, or {MAX_FILES} in one; bake some first")
    try:
        document = read(found)
        check_depth(document, path)
    except OSError as error:
        raise wrong(f"{path} cannot be read: {error.strerror or error}") from None
    except PoolishError as error:
        raise wrong(str(error)) from None
    inside = Reading(os.path.dirname(found), (*reading.files, found), reading.n_files)
    return validated(RecipeFile, document, inside)


_PATHS: Schema = {"type": "array", "items": TEXT, "minItems": 1}
_NESTED: Schema = {
    **TABLE,
    "properties": {"recipe": {"anyOf": [{**TEXT, "description": "the path of its file"}, _reference("recipe")]}},
    "required": ["recipe"],
    "additionalProperties": False,
}
_PICKS: tuple[Schema, ...] = (
    {"enum": ["hash", "latest", "oldest"]},
    {"type": "string", "pattern": r"^(top|stratified)\([\s\S]+\)$"},
)
Plain = kind_of(plain_value, {})
Batched = by_rule(_batched, {})
Source = kind_of(_source, {"anyOf": [TEXT, _PATHS, _NESTED]})
Where = kind_of(where_value, or_null(EXPRESSION))
# 1 is one row and 1.0 is all of them, which JSON schema cannot tell apart.
Take = _amount("take", or_null(COUNT, {"type": "number", "minimum": 0, "maximum": 1}))
Weight = _amount("weight", or_null({"type": "number", "exclusiveMinimum": 0}))
Picked = _amount("pick", or_null(*_PICKS))
OnShort = _amount("on_short", {"enum": [*ON_SHORT, None]})


def _storage(value: Any, info: ValidationInfo) -> Any:
    """Options of a file system, whose values no problem shows."""
    try:
        return StorageOptions.of(value, "ingredient")
    except PoolishError:
        raise wrong(f"a table of options of the file system, got a {type(value).__name__}") from None


Storage = kind_of(_storage, or_null(TABLE))


class Ingredient(Entry):
    """Rows of a source."""

    ingredient: Annotated[Any, *named(INGREDIENT[0].about)] = described(INGREDIENT, "ingredient")
    source: Annotated[Any, *Source] = described(INGREDIENT, "source")
    storage_options: Annotated[Any, *Storage] = described(INGREDIENT, "storage_options")
    where: Annotated[Any, *Where] = described(INGREDIENT, "where")
    take: Annotated[Any, *Take] = described(INGREDIENT, "take")
    weight: Annotated[Any, *Weight] = described(INGREDIENT, "weight")
    pick: Annotated[Any, *Picked] = described(INGREDIENT, "pick")
    on_short: Annotated[Any, *OnShort] = described(INGREDIENT, "on_short")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {"source": None, **cls.without_nulls(data)}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            what = f"ingredient {self.ingredient!r}"
            given = self.given(INGREDIENT)
            amounts = {name: given[name] for name in ("take", "weight", "pick", "on_short") if name in given}
            check_pick(what, *check_amount(what, **amounts))
        except PoolishError as error:
            raise wrong(str(error)) from None
        return self

    def add_to(self, recipe: Any, make: Callable[..., Any]) -> None:
        """Add the ingredient."""
        given = self.given(INGREDIENT)
        given["source"] = self.source.build(make) if isinstance(self.source, RecipeFile) else self.source
        recipe.add_ingredient(**given)


def _version(value: Any, known: Mapping[str, Any]) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, str))):
        raise RecipeError(f"version={short(value)}: a whole number or a text")


def _use(value: Any, info: ValidationInfo) -> Any:
    """The name of a registered step."""
    if not isinstance(value, str) or not value:
        raise wrong_here(f"use={short(value)}: a text, {key_named(STEP, 'use').about}")
    if not is_registered(value):
        raise wrong_here(_unknown_step(value))
    return value


Use = kind_of(_use, {**TEXT, "not": {"enum": list(STEPS)}})
StepVersion = by_rule(_version, {"type": ["integer", "string", "null"]})


class Step(Entry):
    """A preparation step; the fields of its options have aliases, because an option may have any name."""

    step: Annotated[Any, *named(STEP[0].about)] = described(STEP, "step")
    use: Annotated[Any, *Use] = described(STEP, "use")
    where: Annotated[Any, *Where] = described(STEP, "where")
    version: Annotated[Any, *StepVersion] = described(STEP, "version")

    def options(self) -> dict[str, Any]:
        """The options that were given, by their names."""
        fields = type(self).model_fields.items()
        given = {each.alias: getattr(self, name) for name, each in fields if name in self.model_fields_set}
        return {str(name): value for name, value in given.items() if name is not None} | (self.model_extra or {})

    def add_to(self, recipe: Any, make: Callable[..., Any]) -> None:
        """Add the step."""
        given, options = self.given(STEP), self.options()
        if self.use == "validate":
            given["step"] = options.pop("suite")
        recipe.prepare_step(**given, **options)


class BuiltInStep(Step):
    """A step of ``registry.STEPS``."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return cls.without_nulls(data)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # A tokenizer may be downloaded, which reading a file must not cause.
        if self.use not in ("tokenize", "validate"):
            try:
                built_in(self.use, self.step, self.options())
            except PoolishError as error:
                raise wrong(str(error)) from None
        return self


class RegisteredStep(Step):
    """A step of ``@register_step``; ``_registered_model`` adds what the signature of the function says."""

    @model_validator(mode="before")
    @classmethod
    def _names(cls, data: Any) -> Any:
        if "name" in data or "self" in data:
            raise wrong("an option cannot be called 'name' or 'self'; give the argument another name")
        return data


class OpenStep(RegisteredStep):
    """A registered step that takes any options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, *Plain]] = Field(init=False)


def _unknown_step(use: str) -> str:
    known = [*STEPS, *registered_names()]
    hint = suggestion(use, known, f"there are {', '.join(known)}.")
    return (
        f"no step {use!r}; {hint} Files name steps and import nothing: load the module that has @register_step first, "
        "which is what poolish bake --steps does"
    )


def _built_in_model(use: str, options: Mapping[str, Option]) -> type[Step]:
    fields: dict[str, Any] = {"use": (Literal[use], described(STEP, "use"))}
    for name, option in options.items():
        default = ... if option.is_needed else None
        kind: Any = Annotated[(Any, *KINDS[option.kind])]
        kind = kind if option.is_needed else kind | None
        fields[f"option_{name}"] = kind, Field(default, alias=name, description=option.about)
    return create_model(f"{use}_step", __base__=BuiltInStep, **fields)


BUILT_IN_STEPS = {use: _built_in_model(use, options) for use, options in STEPS.items()}


def _step_model(use: Any) -> type[Step]:
    """The model of a step, with the options that a built-in one has or the signature of a registered one allows."""
    if isinstance(use, str) and use in BUILT_IN_STEPS:
        return BUILT_IN_STEPS[use]
    if not isinstance(use, str) or not is_registered(use):
        return OpenStep
    function = registered(use)
    try:
        # The first argument of a function is the row; a class of barriers is called with the options alone.
        arguments = list(inspect.signature(function).parameters.values())[not isinstance(function, type) :]
    except (TypeError, ValueError):  # compiled
        return OpenStep
    about = f"step {use!r} cannot do without it"
    fields: dict[str, Any] = {"option_batched": (Annotated[(Any, *Batched)], Field(None, alias="batched"))}
    for each in arguments:
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD) and each.name not in (*Step.keys(), "batched"):
            default = ... if each.default is each.empty else None
            fields[f"option_{each.name}"] = Annotated[(Any, *Plain)], Field(default, alias=each.name, description=about)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in arguments)
    return create_model(f"{use}_step", __base__=OpenStep if takes_any else RegisteredStep, **fields)


def _instructions(value: Any, info: ValidationInfo) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_here(f"instructions is a list of ingredients and steps, got {short(value)}")
    found, problems = [], []
    for i, entry in enumerate(value):
        try:
            found.append(_instruction(entry, reading_of(info)))
        except Problems as inner:
            problems += [(joined(i, place), text) for place, text in inner.problems]
    if problems:
        raise wrong_inside(Problems(problems))
    return found


def _instruction(entry: Any, reading: Reading) -> Any:
    if not isinstance(entry, Mapping) or "ingredient" in entry:
        return validated(Ingredient, entry, reading)
    if "step" in entry:
        return validated(_step_model(entry.get("use")), entry, reading)
    near = [key for key in map(str, entry) if get_close_matches(key, ("ingredient", "step"), 1)]
    hint = f"; is {near[0]!r} one of them?" if near else ""
    raise Problems([("", f"an instruction begins with 'ingredient' or 'step' and its name{hint}")])


def _known_version(value: Any, known: Mapping[str, Any]) -> None:
    if value != VERSION:
        raise RecipeError(f"version {short(value)} of recipe files is not known here, only {VERSION}")


def _token_column(value: Any, known: Mapping[str, Any]) -> None:
    if value is not None and not isinstance(value, str):
        raise RecipeError(f"tokens={short(value)}: the name of a column")
    if "unit" in known:
        check_unit(known["unit"], value)


_ENTRIES: Schema = {"type": "array", "items": {"anyOf": [_reference("ingredient"), _reference("step")]}}
Instructions = kind_of(_instructions, _ENTRIES)
Seed = by_rule(lambda value, known: seeds.check_seed(value), {**COUNT, "default": 0})
Total = by_rule(lambda value, known: check_total(value), or_null({"type": "integer", "minimum": 1}))
Unit = by_rule(lambda value, known: check_unit(value), {"enum": list(UNITS)})
TokenColumn = by_rule(_token_column, or_null(TEXT))
FileVersion = by_rule(_known_version, {"const": VERSION})


class RecipeFile(Entry):
    """A recipe."""

    what: ClassVar[str] = "a recipe"

    name: Annotated[Any, *named(RECIPE[0].about)] = described(RECIPE, "name")
    seed: Annotated[Any, *Seed] = described(RECIPE, "seed")
    total: Annotated[Any, *Total] = described(RECIPE, "total")
    unit: Annotated[Any, *Unit] = described(RECIPE, "unit")
    tokens: Annotated[Any, *TokenColumn] = described(RECIPE, "tokens", validate_default=True)
    instructions: Annotated[Any, *Instructions] = Field(description="ingredients and steps, in the order of work")
    version: Annotated[Any, *FileVersion] = Field(VERSION, description="of the file format")
    schema_: Annotated[Any, WithJsonSchema({"type": "string"})] = Field(None, alias="$schema")

    @model_validator(mode="before")
    @classmethod
    def _present(cls, data: Any) -> Any:
        named = {key: value for key, value in data.items() if key != "name" or value is not None}
        return {"instructions": None, **named}

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [each.ingredient if isinstance(each, Ingredient) else None for each in self.instructions]
        for i, name in enumerate(names):
            if name is not None and name in names[:i]:
                raise wrong_inside(Problems([(f"instructions[{i}]", taken_name(name))]))
        return self

    def build(self, make: Callable[..., Any]) -> Any:
        """The recipe; ``make`` is its class."""
        recipe = make(**self.given(RECIPE))
        for each in self.instructions:
            each.add_to(recipe, make)
        return recipe


# The JSON schema -----------------------------------------------------------------------------------------------------


def json_schema() -> Schema:
    """The schema of a recipe file, in the words of draft 2020-12.

    >>> json_schema()["required"]
    ['name', 'instructions']
    """
    recipe, ingredient = _schema_of(RecipeFile), _schema_of(Ingredient)
    models: list[type[Entry]] = [*BUILT_IN_STEPS.values(), OpenStep]
    steps = [_schema_of(model) for model in models]
    return {
        **recipe,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:poolish:recipe:{VERSION}",
        "title": "poolish recipe",
        "$defs": {"recipe": recipe, "ingredient": ingredient, "step": {"anyOf": steps}},
    }


def _schema_of(model: type[Entry]) -> Schema:
    schema: Schema = _referring(model.model_json_schema(by_alias=True))
    return schema


def _referring(schema: Any) -> Any:
    """A schema with references instead of what stands for them, and without titles that only repeat names."""
    if isinstance(schema, list):
        return [_referring(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "refers to" in schema:
        return {"$ref": f"#/$defs/{schema['refers to']}"}
    return {key: _referring(each) for key, each in schema.items() if not (key == "title" and isinstance(each, str))}
