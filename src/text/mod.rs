//! From chat messages to token ids and back to text. Pure: no files, no device, no clock.
//!
//! The way in is [`ChatTemplate::render`] followed by [`Tokenizer::encode_rendered`]: the first keeps a
//! record of which bytes of the prompt came from the messages, the second recognises control tokens
//! only outside of these, so that nobody can end a turn by writing the end-of-turn marker.
//! The way out is [`Tokenizer::token_bytes`] followed by [`TextStream::push`]: bytes are collected into
//! whole characters and searched for stop strings before anything is shown.
//!
//! | File | Holds |
//! |---|---|
//! | `tokenizer` | the tokenizer itself: encoding, with and without control tokens |
//! | `vocab` | building it from the vocabulary of a GGUF file |
//! | `pre_tokenizers` | how texts are cut into words before byte-level BPE, by name |
//! | `vocab_pieces`, `pieces`, `pieces_bpe`, `pieces_unigram` | the vocabularies of SentencePiece |
//! | `charsmap` | the replacements of characters that come with them |
//! | `hf_json` | building it from a `tokenizer.json` |
//! | `exchange` | a GGUF's tokenizer as a `tokenizer.json`, and back |
//! | `prevalidate` | what is checked in a `tokenizer.json` before the tokenizers crate sees it |
//! | `control` | finding control tokens in a text |
//! | `token_table` | the bytes behind every id |
//! | `chat_template` | rendering messages with the model's Jinja template |
//! | `template_functions` | the functions and filters that templates expect |
//! | `template_methods`, `template_percent` | what templates do with strings as Python does |
//! | `template_date` | the date that templates may write |
//! | `template_texts` | the texts of a conversation that nobody vouches for |
//! | `content_spans` | telling the messages' text from the template's in a rendering |
//! | `same_tokens` | whether two models have the same tokens |
//! | `detokenize`, `stop` | bytes to whole characters; stop strings |

mod charsmap;
mod chat_template;
mod content_spans;
mod control;
mod detokenize;
mod exchange;
mod hf_json;
mod pieces;
mod pieces_bpe;
mod pieces_unigram;
mod pre_tokenizers;
mod prevalidate;
mod prevalidate_parts;
mod same_tokens;
mod stop;
mod template_date;
mod template_functions;
mod template_methods;
mod template_percent;
mod template_texts;
mod token_table;
mod tokenizer;
mod vocab;
mod vocab_pieces;

pub use chat_template::{
    ChatTemplate, MAX_OUTPUT_BYTES, MAX_TEMPLATE_BYTES, Message, RenderOptions, Rendered,
};
pub use detokenize::TextStream;
pub use same_tokens::same_tokens;
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Piece, StopMatcher, check_stops};
pub use tokenizer::{MAX_VOCAB, Tokenizer};
pub use vocab::{TokenType, Vocab, VocabKind};

#[cfg(test)]
mod tests;
