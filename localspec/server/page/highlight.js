// Strings, comments, numbers and keywords of code, whatever the language.

const LONGEST = 50000; // characters
const HASH = "py python sh bash zsh shell console rb ruby pl perl r jl julia yaml yml toml ini conf dockerfile make makefile cmake nix elixir";
const DASH = "sql lua hs haskell ada elm";
const PLAIN = "text txt plain plaintext output md markdown diff csv log";
const COMMENTS = { hash: String.raw`(?<!\S)#.*`, dash: "--.*", slash: String.raw`(?<!:)\/\/.*|\/\*[^]*?(?:\*\/|$)` };
const STRINGS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"|(?<!\w)'(?:[^'\\\n]|\\.)*'`;
const KEYWORDS = new Set(
  ("abstract and as assert async await begin bool break case catch char class const continue def default defer del do " +
    "double elif else end enum except export extends extern false final finally float fn for from func function go " +
    "goto if impl implements import in include int interface is lambda let local long loop match mod module mut " +
    "namespace new nil not null of or package pass private protected pub public raise return self static string " +
    "struct super switch then this throw trait true try type typedef typeof union unsafe use using var void where " +
    "while with yield False None True ALTER AND AS BY CREATE DELETE DROP FROM GROUP INSERT INTO JOIN LEFT LIMIT NOT " +
    "NULL ON OR ORDER SELECT SET TABLE UPDATE VALUES WHERE").split(" "),
);

/** Parts of a code as [from, to, class]; none where its language is not named. */
export function highlight(code, language) {
  const name = language.split(/[\s{:,]/)[0].toLowerCase();
  if (!name || PLAIN.split(" ").includes(name) || code.length > LONGEST) return [];
  const has = (names) => names.split(" ").includes(name);
  const comment = COMMENTS[has(HASH) ? "hash" : has(DASH) ? "dash" : "slash"];
  const parts = new RegExp(`(${comment})|(${STRINGS})|(?<!\\w)(\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
  return [...code.matchAll(parts)].flatMap((match) => {
    const [text, isComment, isString, isNumber, word] = match;
    const kind = isComment ? "comment" : isString ? "string" : isNumber ? "number" : "keyword";
    return word && !KEYWORDS.has(word) ? [] : [[match.index, match.index + text.length, kind]];
  });
}
