//! The effective configuration as text, for `-p`.
//!
//! Blocks are written in the order of their ids, which is their precedence. To continue a block that was
//! closed meanwhile, its condition is written again, as the language allows.

use std::fmt::Write;

use crate::tree::Condition;
use crate::tree::{Block, BlockId, Config, Entry};
use crate::value::{Array, Element, Value};

/// `config` as configuration text, with all values resolved and conditions nested. Parsing it gives the same
/// tree.
///
/// There is one exception: a string that ends with a backslash, which can only come from the environment. The
/// language cannot write it, because a backslash before the closing quote is an escape.
#[must_use]
pub fn print(config: &Config) -> String {
    let mut printer = Printer {
        config,
        out: String::new(),
        open: vec![BlockId::GLOBAL],
    };
    for entry in &config.global().entries {
        printer.entry(entry);
    }
    for block in config.blocks.iter().skip(1) {
        printer.block(block);
    }
    printer.close_to(1);
    printer.out
}

struct Printer<'c> {
    config: &'c Config,
    out: String,
    /// The blocks that are open, beginning with the global one.
    open: Vec<BlockId>,
}

impl Printer<'_> {
    fn block(&mut self, block: &Block) {
        self.enter(block.parent.unwrap_or(BlockId::GLOBAL));
        match block.previous_branch {
            Some(previous) => self.else_head(previous, block),
            None => self.head("", block),
        }
        for entry in &block.entries {
            self.entry(entry);
        }
    }

    /// Closes and opens blocks until `target` is the innermost open one.
    fn enter(&mut self, target: BlockId) {
        let path = self.path_to(target);
        let common = self
            .open
            .iter()
            .zip(&path)
            .take_while(|(open, wanted)| open == wanted)
            .count();
        self.close_to(common);
        for id in path.into_iter().skip(common) {
            if let Some(block) = self.config.block(id) {
                self.head("", block);
            }
        }
    }

    /// The blocks from the global one to `target`.
    fn path_to(&self, target: BlockId) -> Vec<BlockId> {
        let parent = |&id: &BlockId| self.config.block(id).and_then(|block| block.parent);
        let mut path: Vec<BlockId> = std::iter::successors(Some(target), parent).collect();
        path.reverse();
        path
    }

    /// Writes the head of a further branch. If other text was written since the previous branch, that branch
    /// is a condition that can be written again.
    fn else_head(&mut self, previous: BlockId, block: &Block) {
        if !self.out.ends_with(&format!("}} # {}\n", previous.0)) {
            if let Some(previous) = self.config.block(previous) {
                self.head("", previous);
            }
            self.close_to(self.open.len() - 1);
        }
        self.head("else ", block);
    }

    fn head(&mut self, keyword: &str, block: &Block) {
        if keyword.is_empty() && self.open.len() == 1 {
            self.out.push('\n');
        }
        self.indent();
        let condition = block.condition.as_ref().map(condition_text);
        let _ = writeln!(
            self.out,
            "{keyword}{}{{",
            condition.map_or_else(String::new, |text| text + " ")
        );
        self.open.push(block.id);
    }

    fn close_to(&mut self, depth: usize) {
        while self.open.len() > depth {
            let id = self.open.pop().unwrap_or(BlockId::GLOBAL);
            self.indent();
            let _ = writeln!(self.out, "}} # {}", id.0);
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.indent();
        let _ = write!(self.out, "{} = ", entry.name);
        self.value(&entry.value, self.open.len());
        self.out.push('\n');
    }

    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::String(text) => quote(&mut self.out, text),
            Value::Integer(number) => {
                let _ = write!(self.out, "{number}");
            }
            Value::Array(array) => self.array(array, depth),
        }
    }

    fn array(&mut self, array: &Array, depth: usize) {
        if array.is_empty() {
            self.out.push_str("()");
            return;
        }
        if array
            .iter()
            .all(|element| element.key.is_none() && element.value.as_array().is_none())
        {
            return self.short_list(array, depth);
        }
        self.out.push_str("(\n");
        for element in array {
            self.element(element, depth);
        }
        self.out.push_str(&INDENT.repeat(depth - 1));
        self.out.push(')');
    }

    fn short_list(&mut self, array: &Array, depth: usize) {
        for (position, element) in array.iter().enumerate() {
            self.out.push_str(if position == 0 { "( " } else { ", " });
            self.value(&element.value, depth);
        }
        self.out.push_str(" )");
    }

    fn element(&mut self, element: &Element, depth: usize) {
        self.out.push_str(&INDENT.repeat(depth));
        if let Some(key) = element.key() {
            quote(&mut self.out, key);
            self.out.push_str(" => ");
        }
        self.value(&element.value, depth + 1);
        self.out.push_str(",\n");
    }

    fn indent(&mut self) {
        self.out
            .push_str(&INDENT.repeat(self.open.len().saturating_sub(1)));
    }
}

fn condition_text(condition: &Condition) -> String {
    let mut text = format!("{} {} ", condition.subject, condition.op.symbol());
    quote(&mut text, &condition.pattern);
    text
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    out.push_str(&text.replace('"', "\\\""));
    out.push('"');
}

const INDENT: &str = "    ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read, same_tree};

    fn round_trip(text: &str) -> String {
        let config = read(text);
        let printed = print(&config);
        let again = read(&printed);
        assert!(same_tree(&config, &again), "{text}\n---\n{printed}");
        assert_eq!(print(&again), printed, "printing is stable");
        printed
    }

    #[test]
    fn values_are_printed_resolved() {
        let printed = round_trip(
            "var.a = \"x\"\nserver.tag = a + 1 + \"\\\"\"\nt.list = ( \"a\", 2, )\nt.empty = ()\nt.map = ( \"k\" => ( \"l\" => 1 ), ( ) )",
        );
        let expected = concat!(
            "server.tag = \"x1\\\"\"\n",
            "t.list = ( \"a\", 2 )\n",
            "t.empty = ()\n",
            "t.map = (\n    \"k\" => (\n        \"l\" => 1,\n    ),\n    (),\n)\n",
        );
        assert_eq!(printed, expected);
    }

    #[test]
    fn conditions_are_nested_and_branches_chained() {
        let printed = round_trip(
            r#"$HTTP["host"] == "a" { server.tag = "1"
                 $HTTP["url"] =~ "^/\"x" { server.tag = "2" } else { server.tag = "3" } }
               elif $HTTP["host"] =^ "b" { } else { server.tag = "4" }"#,
        );
        let expected = r#"
$HTTP["host"] == "a" {
    server.tag = "1"
    $HTTP["url"] =~ "^/\"x" {
        server.tag = "2"
    } # 2
    else {
        server.tag = "3"
    } # 3
} # 1
else $HTTP["host"] =^ "b" {
} # 4
else {
    server.tag = "4"
} # 5
"#;
        assert_eq!(printed, expected);
    }

    #[test]
    fn a_block_that_was_reopened_keeps_its_place() {
        round_trip(
            r#"$HTTP["host"] == "a" { $HTTP["url"] == "/1" { t.a = 1 } }
               $HTTP["host"] == "b" { t.a = 2 }
               $HTTP["host"] == "a" { t.b = 3
                 $HTTP["url"] == "/2" { t.a = 4 } else { t.a = 5 } }
               $HTTP["host"] == "b" { } else $HTTP["host"] == "c" { t.a = 6 }
               $HTTP["host"] == "b" { } else { t.a = 7 }"#,
        );
    }

    #[test]
    fn every_subject_and_operator_comes_back() {
        round_trip(
            r#"$SERVER["socket"] == ":81" { t.a = 1 }
               $REQUEST_HEADER["X-A\"b"] != "x" { t.a = 1 }
               $HTTP["remote-ip"] == "10.0.0.0/8" { t.a = 1 }
               $HTTP["query-string"] !~ "a" { t.a = 1 }
               $PHYSICAL["path"] =$ ".x" { t.a = 1 }
               $PHYSICAL["existing-path"] =^ "/x" { t.a = 1 }
               $REQUEST_HEADER["User-Agent"] =~ "x" { t.a = 1 }
               $HTTP["language"] =~ "de" { t.a = 1 }"#,
        );
    }
}
