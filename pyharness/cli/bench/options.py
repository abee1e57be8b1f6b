"""What the benches' options share."""

import click


class Several(click.ParamType):
    """Values of one type, separated by commas."""

    def __init__(self, one: click.ParamType):
        self.one = one
        self.name = f"{one.name},..."

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        values = tuple(self.one.convert(part.strip(), param, ctx) for part in value.split(","))
        if len(set(values)) < len(values):
            self.fail(f"{value}: the same value twice", param, ctx)
        return values


threads_option = click.option(
    "--threads", type=Several(click.IntRange(1, 512)), default="1,2", show_default=True, help="One table for each."
)
json_option = click.option("--json", "as_json", is_flag=True, help='Print {"env": {...}, "rows": [...]}.')
