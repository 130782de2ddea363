//! Bracketed expressions to trees. Tokens are separated by white space; a refusal says which token is at fault, counting from 1.

use crate::options::Brackets;
use crate::shape::{Child, Shape};

/// The tokens a model knows.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    /// Sorted; a token is its place in the model's list.
    tokens: Vec<(String, i64)>,
}

impl Vocabulary {
    /// # Errors
    /// A token twice, or none at all.
    pub(crate) fn new(tokens: &[String]) -> Result<Self, String> {
        let mut tokens: Vec<(String, i64)> = tokens.iter().cloned().zip(0..).collect();
        tokens.sort_unstable();
        match tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            _ if tokens.is_empty() => Err("holds no tokens".into()),
            Some(twice) => Err(format!("holds `{}` twice", twice[0].0)),
            None => Ok(Self { tokens }),
        }
    }

    /// How many there are.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn find(&self, token: &str) -> Option<i64> {
        self.tokens.binary_search_by(|(known, _)| known.as_str().cmp(token)).ok().map(|found| self.tokens[found].1)
    }
}

/// Reads one whole expression of at most `max_leaves` leaves.
///
/// # Errors
/// What is wrong, and at which token.
pub(crate) fn parse(text: &str, brackets: Brackets, vocabulary: &Vocabulary, max_leaves: u32) -> Result<Shape, String> {
    let mut parser = Parser { vocabulary, max_leaves, shape: Shape::default(), open: vec![], root: None };
    for (position, token) in text.split_whitespace().enumerate() {
        let result = match brackets {
            _ if parser.root.is_some() => Err("stands behind the end of the expression".into()),
            Brackets::Lists => parser.list_token(token),
            Brackets::Binary => parser.binary_token(token),
        };
        result.map_err(|sentence| format!("token {} (`{token}`) {sentence}", position + 1))?;
    }
    match (parser.root, parser.open.len()) {
        (Some(_), _) => Ok(parser.shape),
        (None, 0) => Err("the expression is empty".into()),
        (None, open) => Err(format!("the expression ends with {open} open brackets")),
    }
}

struct Parser<'a> {
    vocabulary: &'a Vocabulary,
    max_leaves: u32,
    shape: Shape,
    /// Of each open bracket, what it holds so far: at most one child, or, closed next, two.
    open: Vec<(Option<Child>, Option<Child>)>,
    root: Option<Child>,
}

impl Parser<'_> {
    /// A list branches to the left, and its brackets are leaves: `[MAX 2 9 ]` is `((([MAX 2) 9) ])`.
    fn list_token(&mut self, token: &str) -> Result<(), String> {
        if token.starts_with('[') {
            let leaf = self.leaf(token)?;
            return self.open(Some(leaf));
        }
        if token != "]" {
            let leaf = self.leaf(token)?;
            self.append(leaf);
            return Ok(());
        }
        let so_far = self.open.pop().and_then(|(so_far, _)| so_far);
        let so_far = so_far.ok_or("closes a list that was never opened")?;
        let leaf = self.leaf(token)?;
        let list = self.shape.join(so_far, leaf);
        self.append(list);
        Ok(())
    }

    fn append(&mut self, item: Child) {
        match self.open.pop() {
            Some((Some(so_far), _)) => {
                let joined = self.shape.join(so_far, item);
                self.open.push((Some(joined), None));
            }
            Some((None, _)) => self.open.push((Some(item), None)),
            None => self.root = Some(item),
        }
    }

    /// `(` and `)` are structure only, around exactly two children.
    fn binary_token(&mut self, token: &str) -> Result<(), String> {
        let item = match token {
            "(" => return self.open(None),
            ")" => match self.open.pop().ok_or("closes a bracket that was never opened")? {
                (Some(left), Some(right)) => self.shape.join(left, right),
                _ => return Err("closes a bracket that does not hold two children".into()),
            },
            leaf => self.leaf(leaf)?,
        };
        match self.open.last_mut() {
            None => self.root = Some(item),
            Some((left @ None, _)) => *left = Some(item),
            Some((_, right @ None)) => *right = Some(item),
            Some(_) => return Err("is a third child of its bracket, which holds two".into()),
        }
        Ok(())
    }

    fn open(&mut self, first: Option<Child>) -> Result<(), String> {
        // A tree of n leaves is at most n deep.
        if self.open.len() >= self.max_leaves as usize {
            return Err(format!("opens bracket {}, and this model takes at most {} leaves", self.open.len() + 1, self.max_leaves));
        }
        self.open.push((first, None));
        Ok(())
    }

    fn leaf(&mut self, token: &str) -> Result<Child, String> {
        let code = self.vocabulary.find(token).ok_or("is not in this model's vocabulary")?;
        if self.shape.tokens.len() >= self.max_leaves as usize {
            return Err(format!("is leaf {}, and this model takes at most {}", self.shape.tokens.len() + 1, self.max_leaves));
        }
        Ok(self.shape.leaf(code))
    }
}

#[cfg(test)]
mod tests {
    use super::Child::{Internal, Leaf};
    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::new(&["a", "b", "c", "[MAX", "[MIN", "]"].map(String::from)).unwrap()
    }

    fn lists(text: &str) -> Result<Shape, String> {
        parse(text, Brackets::Lists, &vocabulary(), 6)
    }

    fn binary(text: &str) -> Result<Shape, String> {
        parse(text, Brackets::Binary, &vocabulary(), 6)
    }

    #[test]
    fn a_list_branches_to_the_left_and_its_brackets_are_leaves() {
        let tree = lists("[MAX a [MIN b ] ]").unwrap();
        assert_eq!(tree.tokens, [3, 0, 4, 1, 5, 5]);
        let expected = [(Leaf(0), Leaf(1)), (Leaf(2), Leaf(3)), (Internal(1), Leaf(4)), (Internal(0), Internal(2)), (Internal(3), Leaf(5))];
        assert_eq!(tree.children, expected);
    }

    #[test]
    fn round_brackets_are_structure_only() {
        let tree = binary("( ( a b ) c )").unwrap();
        assert_eq!((&tree.tokens[..], &tree.children[..]), (&[0, 1, 2][..], &[(Leaf(0), Leaf(1)), (Internal(0), Leaf(2))][..]));
        let tree = binary("( a ( b c ) )").unwrap();
        assert_eq!(tree.children, [(Leaf(1), Leaf(2)), (Leaf(0), Internal(0))]);
    }

    #[test]
    fn a_single_token_is_a_tree() {
        for tree in [lists("b"), binary(" b ")] {
            assert_eq!(tree, Ok(Shape { tokens: vec![1], children: vec![] }));
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_by_token() {
        type Parse = fn(&str) -> Result<Shape, String>;
        let cases: [(Parse, &str, &str); 13] = [
            (lists, "", "the expression is empty"),
            (lists, "[MAX x ]", "token 2 (`x`) is not in this model's vocabulary"),
            (lists, "[MAX a", "the expression ends with 1 open brackets"),
            (lists, "[MAX [MIN a ]", "the expression ends with 1 open brackets"),
            (lists, "]", "token 1 (`]`) closes a list that was never opened"),
            (lists, "a b", "token 2 (`b`) stands behind the end of the expression"),
            (lists, "[MAX a ] ]", "token 4 (`]`) stands behind the end of the expression"),
            (lists, "[MAX a a a a a ]", "token 7 (`]`) is leaf 7, and this model takes at most 6"),
            (binary, "( a b c )", "token 4 (`c`) is a third child of its bracket, which holds two"),
            (binary, "( a )", "token 3 (`)`) closes a bracket that does not hold two children"),
            (binary, ")", "token 1 (`)`) closes a bracket that was never opened"),
            (binary, "( a b", "the expression ends with 1 open brackets"),
            (binary, "( ( ( ( ( ( ( a", "token 7 (`(`) opens bracket 7, and this model takes at most 6 leaves"),
        ];
        for (parse, text, sentence) in cases {
            assert_eq!(parse(text).unwrap_err(), sentence, "{text}");
        }
    }

    #[test]
    fn a_vocabulary_holds_each_token_once() {
        assert_eq!(Vocabulary::new(&["a".into(), "b".into(), "a".into()]).unwrap_err(), "holds `a` twice");
        assert_eq!(Vocabulary::new(&[]).unwrap_err(), "holds no tokens");
    }
}
