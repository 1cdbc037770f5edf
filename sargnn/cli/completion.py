"""Shell completion: verbs, groups with their options, settings.

``sargnn completion bash`` prints a script that asks ``sargnn completion --candidates WORD ...`` for what may follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.help import Help, groups_of, help_text, options_of, settings_of, wanted
from sargnn.cli.main import VERBS, conf_dir
from sargnn.errors import ConfigError, nearest

HELP = Help(
    usage="completion bash|zsh|fish",
    text="Print a script that teaches the shell to complete verbs, groups, options and settings.",
    examples=(
        ("completion bash > ~/.sargnn.bash", "then: source ~/.sargnn.bash"),
        ("completion zsh > ~/.sargnn.zsh", "then: source ~/.sargnn.zsh"),
        ("completion fish > ~/.config/fish/completions/sargnn.fish", ""),
    ),
)
_BASH = """\
_sargnn() {
    local line=("${COMP_WORDS[@]:1:COMP_CWORD}") word="" words=() part
    # bash splits at '='; put key=value together again
    for part in "${line[@]}"; do
        if [[ $part == "=" ]]; then word+="="
        elif [[ $word == *= ]]; then word+="$part"
        else [[ -n $word ]] && words+=("$word"); word="$part"; fi
    done
    if [[ ${COMP_WORDS[COMP_CWORD]} == "" && $word != *= && -n $word ]]; then words+=("$word"); word=""; fi
    local found
    found=$(sargnn completion --candidates "${words[@]}" "$word" 2>/dev/null)
    [[ $word == *=* ]] && found=$(printf '%s\\n' "$found" | sed 's/^[^=]*=//') && word="${word#*=}"
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -F _sargnn sargnn
"""
_ZSH = """\
#compdef sargnn
_sargnn() {
    local -a found
    found=(${(f)"$(sargnn completion --candidates "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    compadd -S '' -- $found
}
compdef _sargnn sargnn
"""
_FISH = """\
complete -c sargnn -f -a '(sargnn completion --candidates (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_FOLDER_VERBS = ("compare", "track")
_SETTINGS = {
    "clean": ("what=", "store_dir=", "yes="),
    "info": ("store_dir=", "tracking.uri="),
    "ui": ("port=", "tracking.uri="),
}


def main(arguments: Sequence[str]) -> int:
    """Print a script, or candidates."""
    if arguments and arguments[0] == "--candidates":
        print("\n".join(candidates(arguments[1:])))
        return 0
    if wanted(arguments) or not arguments:
        print(help_text(HELP))
        return 0
    if arguments[0] not in SCRIPTS:
        raise ConfigError("There is no completion for this shell.", given=arguments[0], allowed=nearest(arguments[0], SCRIPTS))
    print(SCRIPTS[arguments[0]], end="")
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word may become; the words before it are given."""
    last = words[-1] if words else ""
    if len(words) <= 1:
        return [verb for verb in VERBS if verb.startswith(last)]
    verb = words[0]
    if verb == "completion":
        return [shell for shell in SCRIPTS if shell.startswith(last)]
    if verb in _FOLDER_VERBS:
        return [str(path) for path in sorted(Path("runs").glob("*")) if str(path).startswith(last)]
    if verb in _SETTINGS:
        return [key for key in _SETTINGS[verb] if key.startswith(last)]
    config = {"bench": "bench_kernels"}.get(verb, verb)
    if not (conf_dir() / f"{config}.yaml").is_file():
        return []
    if verb == "bench" and len(words) == 2:
        return ["kernels"]
    groups = groups_of(config)
    group, equals, start = last.partition("=")
    if equals and group in groups:
        return [f"{group}={option}" for option in options_of(group) if option.startswith(start)]
    names = [f"{name}=" for name in groups] + [f"{key}=" for key, _, _ in settings_of(config)]
    if "." in last:
        names += [f"{key}=" for key in _nested(groups)]
    return [name for name in dict.fromkeys(names) if name.startswith(last)]


def _nested(groups: dict[str, str]) -> list[str]:
    """``group.key`` of every option of the groups."""
    import re

    keys: set[str] = set()
    for group in groups:
        if group == "experiment":
            continue
        for path in (conf_dir() / group).glob("*.yaml"):
            keys |= {f"{group}.{key}" for key in re.findall(r"^(\w+):", path.read_text(), flags=re.M) if key != "name"}
    return sorted(keys)
