// The work list of the attention kernel: eight words an item, in step_meta.
//   0 token0      first row of q and out         4 first_split  split s is keys 256 s .. 256 s + 255
//   1 num_tokens  of one sequence                5 num_splits   splits to walk
//   2 position0   position of token0             6 slot0        row of partials of token0, or
//   3 table_at    page table, in step_meta                      0xFFFFFFFF: fold, and write out
//   7 unused
// All pages that an item reads are in the slab that is bound. A row is a token and one of the query
// heads of a key head; an item's rows, for each key head, are cut into tiles. A token sees itself and those
// before it, params.window in all, which is 2^31 where it sees everything; pages that no row of a tile
// sees are not walked, and what is in the page table for them is no matter.
struct AttentionTile {
    token0: u32, position0: u32, table_at: u32, slot0: u32,
    first_page: u32,
    num_pages: u32, // to walk
    last: u32,      // position of the tile's last token
    span: u32,      // so many keys up to it are seen by some row
    kv_head: u32,
    row0: u32,
    rows: u32,      // of the item, from 0; none where there is no such tile
}

// Where the window of the token at `position` begins.
fn attention_first(position: u32) -> u32 {
    return position + 1u - min(position + 1u, params.window);
}

// Tile `index` of all, of ROW_FOURS * 4 rows; params.tiles are those of an item's key head.
fn attention_tile(index: u32) -> AttentionTile {
    let item = index / (params.num_kv_heads * params.tiles);
    let at = params.items_at + min(item, params.num_items - 1u) * 8u;
    let group = params.num_heads / params.num_kv_heads;
    let row0 = index % params.tiles * (ROW_FOURS * 4u);
    let all_rows = step_meta[at + 1u] * group;
    let rows = select(0u, all_rows, item < params.num_items && row0 < all_rows);
    let position0 = step_meta[at + 2u];
    let last = position0 + (min(row0 + ROW_FOURS * 4u, all_rows) - 1u) / group;
    let first = attention_first(position0 + min(row0, all_rows - 1u) / group);
    let split_page = step_meta[at + 4u] * 16u;
    let first_page = max(split_page, first / 16u);
    let end_page = select(0u, min(split_page + step_meta[at + 5u] * 16u, last / 16u + 1u), rows > 0u);
    return AttentionTile(
        step_meta[at], position0, step_meta[at + 3u], step_meta[at + 6u],
        first_page, max(end_page, first_page) - first_page, last, last + 1u - first,
        index / params.tiles % params.num_kv_heads, row0, rows);
}

// Where the keys (and values) of a page begin, in units of eight dims.
fn attention_page(tile: AttentionTile, page: u32) -> u32 {
    let in_slab = min(step_meta[tile.table_at + page] - params.first_page, params.num_pages - 1u);
    return (in_slab * params.num_kv_heads + tile.kv_head) * 2u * HEAD_DIM;
}
