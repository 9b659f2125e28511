//! The conversation as a value: a system message, and turns of a message and its answer.

use nelumbo::text::Message;
use serde_json::{Value, json};

/// A message and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub user: String,
    pub assistant: String,
}

/// Everything that was said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversation {
    pub system: Option<String>,
    turns: Vec<Turn>,
}

/// The word in a saved file that says what it is.
const FORMAT: &str = "nelumbo-chat";
const VERSION: u64 = 1;

impl Conversation {
    pub fn new(system: Option<String>) -> Conversation {
        Conversation {
            system,
            turns: Vec::new(),
        }
    }

    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Messages that the template gets with one more of the user's.
    pub fn num_messages_with_next(&self) -> usize {
        usize::from(self.system.is_some()) + 2 * self.turns.len() + 1
    }

    /// What the template gets for the message that comes next.
    pub fn messages_with(&self, next: &str) -> Vec<Message> {
        let mut messages = self.messages();
        messages.push(Message::new("user", next));
        messages
    }

    fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let turns = self.turns.iter().flat_map(|turn| {
            [
                Message::new("user", &turn.user),
                Message::new("assistant", &turn.assistant),
            ]
        });
        system.chain(turns).collect()
    }

    pub fn push(&mut self, user: String, assistant: String) {
        self.turns.push(Turn { user, assistant });
    }

    /// Takes the last turn off.
    pub fn pop(&mut self) -> Option<Turn> {
        self.turns.pop()
    }

    /// Takes up to `count` turns back; tells how many there were.
    pub fn undo(&mut self, count: usize) -> usize {
        let kept = self.turns.len().saturating_sub(count);
        let gone = self.turns.len() - kept;
        self.turns.truncate(kept);
        gone
    }

    /// Forgets all turns; tells how many there were.
    pub fn clear(&mut self) -> usize {
        let gone = self.turns.len();
        self.turns = Vec::new(); // the memory as well
        gone
    }

    /// The conversation as a file holds it: roles and contents, as chat interfaces write them.
    pub fn to_json(&self, model: &str) -> Value {
        json!({
            "format": FORMAT,
            "version": VERSION,
            "model": model,
            "messages": self.messages(),
        })
    }

    /// Reads what [`Conversation::to_json`] wrote, or any object with `messages` that alternate. The
    /// error says which field is wrong and how.
    pub fn from_json(text: &str) -> Result<Conversation, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let version = value.get("version").unwrap_or(&Value::Null);
        if value.get("format").is_some_and(|format| format == FORMAT) && *version != VERSION {
            return Err(format!("version: is {version}, expected {VERSION}"));
        }
        let list = value
            .get("messages")
            .and_then(Value::as_array)
            .ok_or("messages: a list of roles and contents is missing")?;
        let mut conversation = Conversation::default();
        let mut asked: Option<String> = None;
        for (i, entry) in list.iter().enumerate() {
            let word = |field: &str| {
                let text = entry.get(field).and_then(Value::as_str);
                text.ok_or_else(|| format!("messages[{i}].{field}: expected a text"))
            };
            let (role, content) = (word("role")?, word("content")?.to_owned());
            let wrong = |found: &str| Err(format!("messages[{i}].role: {found}"));
            match (role, &mut asked) {
                ("system", None) if i == 0 => conversation.system = Some(content),
                ("system", _) => return wrong("a system message can only come first"),
                ("user", none @ None) => *none = Some(content),
                ("user", Some(_)) => return wrong("a user's message after another"),
                ("assistant", some @ Some(_)) => {
                    conversation.push(some.take().unwrap_or_default(), content);
                }
                ("assistant", None) => return wrong("an answer without a message before it"),
                (other, _) => {
                    return wrong(&format!(
                        "is \"{other}\", expected system, user or assistant"
                    ));
                }
            }
        }
        match asked {
            Some(_) => Err("messages: the last one has no answer".to_owned()),
            None => Ok(conversation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Conversation {
        let mut conversation = Conversation::new(Some("Be brief.".to_owned()));
        conversation.push("안녕".to_owned(), "\"Hi\"\n".to_owned());
        conversation.push("b".to_owned(), String::new());
        conversation
    }

    #[test]
    fn the_template_gets_all_of_it_in_order() {
        let roles: Vec<String> = sample()
            .messages_with("next")
            .into_iter()
            .map(|m| format!("{}:{}", m.role, m.content))
            .collect();
        assert_eq!(
            roles,
            [
                "system:Be brief.",
                "user:안녕",
                "assistant:\"Hi\"\n",
                "user:b",
                "assistant:",
                "user:next"
            ]
        );
        assert_eq!(sample().num_messages_with_next(), 6);
        assert_eq!(Conversation::new(None).num_messages_with_next(), 1);
    }

    #[test]
    fn turns_are_taken_back_one_by_one_or_together() {
        let mut conversation = sample();
        assert_eq!(conversation.undo(1), 1);
        assert_eq!(conversation.turns()[0].user, "안녕");
        assert_eq!(conversation.undo(7), 1);
        assert_eq!(conversation.undo(1), 0);
        assert!(conversation.turns().is_empty() && conversation.pop().is_none());
        let mut conversation = sample();
        assert_eq!((conversation.clear(), conversation.clear()), (2, 0));
        assert_eq!(conversation.system.as_deref(), Some("Be brief."));
    }

    #[test]
    fn a_file_brings_back_what_was_saved() {
        let text = sample().to_json("m").to_string();
        assert_eq!(Conversation::from_json(&text), Ok(sample()));
        let foreign =
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let read = Conversation::from_json(foreign).unwrap();
        assert_eq!((read.system.is_none(), read.turns().len()), (true, 1));
    }

    #[test]
    fn a_wrong_file_is_told_by_field() {
        for (text, part) in [
            ("{", "EOF"),
            ("[]", "messages"),
            (
                r#"{"format":"nelumbo-chat","version":2,"messages":[]}"#,
                "version: is 2",
            ),
            (r#"{"messages":[{"role":"user"}]}"#, "messages[0].content"),
            (
                r#"{"messages":[{"role":"user","content":"a"}]}"#,
                "no answer",
            ),
            (
                r#"{"messages":[{"role":"assistant","content":"a"}]}"#,
                "messages[0].role",
            ),
            (
                r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"a"}]}"#,
                "messages[1].role",
            ),
            (
                r#"{"messages":[{"role":"user","content":"a"},{"role":"system","content":"a"}]}"#,
                "can only come first",
            ),
            (
                r#"{"messages":[{"role":"tool","content":"a"}]}"#,
                "\"tool\"",
            ),
        ] {
            let problem = Conversation::from_json(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn a_hundred_thousand_messages_are_read_and_counted() {
        let mut conversation = Conversation::default();
        for i in 0..50_000 {
            conversation.push(format!("question {i}"), format!("answer {i}"));
        }
        let text = conversation.to_json("m").to_string();
        let read = Conversation::from_json(&text).unwrap();
        assert_eq!(read.num_messages_with_next(), 100_001);
        assert_eq!(read, conversation);
    }
}
