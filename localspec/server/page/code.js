// The colours of code: comments, strings, numbers and keywords of common languages.

const C_WORDS = "break case catch class const continue default do else enum extends false final finally for " +
  "goto if implements import interface new null package private protected public return static super " +
  "switch this throw throws true try void volatile while";
const WORDS = {
  python: "and as assert async await break case class continue def del elif else except False finally for from " +
    "global if import in is lambda match None nonlocal not or pass raise return True try while with yield",
  javascript: `${C_WORDS} as async await debugger delete export from function in instanceof let of type ` +
    "typeof undefined var yield declare keyof namespace readonly boolean string number any never unknown",
  c: `${C_WORDS} abstract auto bool boolean byte char constexpr delete double explicit extern float friend ` +
    "inline int internal long mutable namespace noexcept nullptr operator override readonly record sealed short " +
    "signed sizeof string struct template typedef typename union unsigned using var virtual when",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match " +
    "mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  go: "break case chan const continue default defer else fallthrough false for func go goto if import interface " +
    "map nil package range return select struct switch true type var",
  kotlin: `${C_WORDS} actor as async await data defer extension fun func guard in init internal is lazy let ` +
    "nil object open override protocol sealed self struct suspend val var when where",
  ruby: "alias and begin break case class def do else elsif end ensure false for function if in local module " +
    "next nil not or redo repeat rescue retry return self super then true undef unless until when while yield",
  shell: "break case continue do done elif else esac exit export fi for function if in local return set shift " +
    "source then trap unset until while",
  sql: "add all alter and as asc begin between by case commit create cross default delete desc distinct drop " +
    "else end except exists foreign from full group having if in index inner insert intersect into is join key " +
    "left like limit not null on or order outer primary references right rollback select set table then " +
    "transaction union unique update values view when where with",
  data: "true false null True False None yes no on off",
};

const HASH = "(?<![^\\s;])#.*";
const SLASHES = "//.*|/\\*(?:[^]*?\\*/|[^]*)";
const DASHES = "--.*|/\\*(?:[^]*?\\*/|[^]*)";
const QUOTED = `"(?:\\\\[^]|[^"\\\\\\n])*"?|'(?:\\\\[^]|[^'\\\\\\n])*'?`;
const CHARACTER = `"(?:\\\\[^]|[^"\\\\\\n])*"?|'(?:\\\\[^'\\n]{1,9}|[^'\\\\\\n])'`; // 'a alone is a lifetime
const TRIPLE = `"""(?:[^]*?"""|[^]*)|'''(?:[^]*?'''|[^]*)|${QUOTED}`;
const BACKTICKS = "`(?:\\\\[^]|[^`\\\\])*`?";

/** [names, comments, strings, keywords] of languages that are alike enough. */
const FAMILIES = [
  ["python py python3 pycon pyi", "#.*", TRIPLE, "python"],
  ["javascript js jsx typescript ts tsx mjs php", SLASHES, `${QUOTED}|${BACKTICKS}`, "javascript"],
  ["c cpp c++ h hpp cc cuda java csharp cs c# objc dart scala", SLASHES, CHARACTER, "c"],
  ["rust rs", SLASHES, CHARACTER, "rust"],
  ["go golang", SLASHES, `${CHARACTER}|${BACKTICKS}`, "go"],
  ["kotlin kt swift groovy", SLASHES, CHARACTER, "kotlin"],
  ["ruby rb elixir julia perl", "#.*", QUOTED, "ruby"],
  ["lua haskell", "--.*", QUOTED, "ruby"],
  ["sh bash shell zsh console dockerfile makefile powershell", HASH, `"(?:\\\\[^]|[^"\\\\])*"?|'[^']*'?`, "shell"],
  ["sql postgresql mysql sqlite", DASHES, QUOTED, "sql"],
  ["json jsonc json5 jsonl", SLASHES, QUOTED, "data"],
  ["yaml yml toml ini conf", HASH, QUOTED, "data"],
  ["css scss less", SLASHES, QUOTED, "data"],
  ["html xml svg vue", "<!--(?:[^]*?-->|[^]*)", `"[^"]*"?`, "data"],
];
const NUMBER = "0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?";
const RULES = new Map(FAMILIES.flatMap(([names, comment, string, words]) => {
  const pattern = `(?<comment>${comment})|(?<string>${string})|(?<word>[\\p{L}_$][\\p{L}\\p{N}_$]*)|(?<number>${NUMBER})`;
  const rule = { pattern: new RegExp(pattern, "gu"), words: new Set(WORDS[words].split(" ")), folds: words === "sql" };
  return names.split(" ").map((name) => [name, rule]);
}));

/** The parts of code that have a colour, each {from, to, kind}; none of an unknown language. */
export function coloured(text, language) {
  const rule = RULES.get(language.toLowerCase());
  return rule ? [...text.matchAll(rule.pattern)].map((match) => part(match, rule)).filter(Boolean) : [];
}

function part({ index: from, 0: { length }, groups }, { words, folds }) {
  const { word } = groups;
  const isKeyword = word && words.has(folds ? word.toLowerCase() : word);
  const kind = isKeyword ? "keyword" : ["comment", "string", "number"].find((name) => groups[name]);
  return kind && { from, to: from + length, kind };
}
