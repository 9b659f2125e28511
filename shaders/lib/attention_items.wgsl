// The work list that the two attention kernels share: eight words an item, in step_meta.
//   0 token0      first row of q and out         4 first_split  split s is keys 256 s .. 256 s + 255
//   1 num_tokens  rows, all of one sequence      5 num_splits   splits to walk
//   2 position0   position of token0             6 slot0        row of partials of token0, or
//   3 table_at    page table, in step_meta                      0xFFFFFFFF: fold, and write out
//   7 scores_at   scores, in units of four keys: [num_tokens][num_heads][4 * pages]
// All pages that an item reads are in the slab that is bound. A workgroup (z) has a chunk of the
// query heads of one key head, so num_tokens * heads rows.
struct AttentionItem {
    token0: u32, table_at: u32, first_split: u32, num_splits: u32, slot0: u32, scores_at: u32,
    position0: u32,
    last: u32,       // position of the last token
    end_page: u32,   // of the sequence, behind the last that is read
    quads: u32,      // four keys each, in a row of scores
    kv_head: u32,
    first_head: u32, // query head
    heads: u32,
    rows: u32,
}

fn attention_item(item: u32, z: u32) -> AttentionItem {
    let at = params.items_at + item * 8u;
    let group_heads = params.num_heads / params.num_kv_heads;
    let chunks = (group_heads + params.chunk_heads - 1u) / params.chunk_heads;
    let chunk_head = (z % chunks) * params.chunk_heads;
    let heads = min(params.chunk_heads, group_heads - chunk_head);
    let position0 = step_meta[at + 2u];
    let last = position0 + step_meta[at + 1u] - 1u;
    let first_page = step_meta[at + 4u] * 16u;
    let end_page = min(first_page + step_meta[at + 5u] * 16u, last / 16u + 1u);
    return AttentionItem(
        step_meta[at], step_meta[at + 3u], step_meta[at + 4u], step_meta[at + 5u], step_meta[at + 6u],
        step_meta[at + 7u], position0, last, end_page, (end_page - first_page) * 4u, z / chunks,
        (z / chunks) * group_heads + chunk_head, heads, step_meta[at + 1u] * heads);
}

// Where a row's scores begin, in units of four keys.
fn attention_scores_at(item: AttentionItem, row: u32) -> u32 {
    let head = item.first_head + row % item.heads;
    return item.scores_at + ((row / item.heads) * params.num_heads + head) * item.quads;
}

// Where the keys (and values) of a page begin, in units of eight dims.
fn attention_page(item: AttentionItem, page: u32) -> u32 {
    let in_slab = min(step_meta[item.table_at + page] - params.first_page, params.num_pages - 1u);
    return (in_slab * params.num_kv_heads + item.kv_head) * 2u * params.head_dim;
}
