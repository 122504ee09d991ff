#include "golden/store/sweep_cases.h"

#include <algorithm>

namespace touchstone {

namespace {

constexpr SweepRow rows[] = {
    // Records and conversions: a block of 32, a tile of 128 rows.
    {"quantize_{q8|q4i|q4m}(rows={127|128|129},channels=32,fill=trap)", "rows around 128; one block a row"},
    {"quantize_{q8|q4i|q4m}(rows=3,channels={64|96|4096},fill={normal|trap|limits})",
     "one, two and many blocks"},
    {"dequantize_{q8|q4i|q4m}(rows={127|128|129},channels=32,fill=bytes)",
     "rows around 128; one block a row"},
    {"dequantize_{q8|q4i|q4m}(rows=2,channels={64|96|4096},fill={normal|bytes})", "one, two and many blocks"},

    // Norm and rotation.
    {"rms_norm(rows=2,width={31|32|33|127|128|129|255|256|511|512|513|1023|1024|1025})",
     "widths around a warp, its lanes and a block"},
    {"rms_norm(rows=1,width={4097|5119|5121|7168|8192})",
     "widths with 1024 lanes, the last of them not full"},
    {"rms_norm(rows={1|127|128|129},width=64)", "rows do not change a row"},
    {"rms_norm(rows=5,width={64|4096},eps={1e-06|0},fill=limits)", "eps that decides, and none"},
    {"rope(rows={1|2|8|10|128|129},heads=1,head_dim=64)", "positions on both sides of 128 and 65,536"},
    {"rope(rows=9,heads=2,head_dim={66|128},rope_dim={2|64},table={compress|main},direction={forward|inverse}"
     ")",
     "both tables, both directions, one pair and all of them"},
    {"rope(rows=9,heads=1,head_dim=64,table=main,fill=limits)", "zeros of both signs and subnormals"},

    // Linear layers: pieces of K by N, tiles of rows and of outputs, least and odd K.
    {"linear_fp8(rows={1|2|15|16|17|127|128|129},outputs=32,inputs=96)", "rows around tiles of 16 and 128"},
    {"linear_fp8(rows=1,outputs={1|31|32|33|511|512|513|1279|1280|1281},inputs=64)",
     "outputs around tiles and the table's 512 and 1280"},
    {"linear_fp8(rows=1,outputs=8,inputs={32|64|992|1024|1056|2048|2304|4096|5120})",
     "K of one block, around eight pieces of eight steps, of the model"},
    {"linear_fp8(rows=5,outputs=33,inputs={32|2304},fill=limits)", "poisoned rows beside ordinary ones"},
    {"linear_fp4(rows={1|2|15|16|17|127|128|129},outputs=32,inputs=96)", "rows around tiles of 16 and 128"},
    {"linear_fp4(rows=1,outputs={1|31|32|33|511|512|513|1279|1280|1281},inputs=64)",
     "outputs around tiles and the table's 512 and 1280"},
    {"linear_fp4(rows=1,outputs=8,inputs={32|64|992|1024|1056|2048|2304|4096|5120})",
     "K of one block, around eight pieces of eight steps, of the model"},
    {"linear_fp4(rows=5,outputs=33,inputs={32|2304},fill=limits)", "poisoned rows beside ordinary ones"},
    {"linear_bf16(rows={1|2|15|16|17|127|128|129},outputs=32,inputs=48)", "rows around tiles of 16 and 128"},
    {"linear_bf16(rows=1,outputs={1|31|32|33|511|512|513|1279|1280|1281},inputs=64)",
     "outputs around tiles and the table's 512 and 1280"},
    {"linear_bf16(rows=1,outputs=8,inputs={16|32|1008|1024|1040|2048|2304|4096|5120})",
     "K of one step, around eight pieces of eight steps, of the model"},
    {"linear_bf16(rows=5,outputs=33,inputs={16|2304},fill=limits)", "poisoned rows beside ordinary ones"},
    {"lm_head(rows={1|2|16|17},outputs=33,inputs=64)", "rows around a tile of 16"},
    {"lm_head(rows=1,outputs={511|512|513|1280|1281},inputs=64)", "outputs around the table's 512 and 1280"},
    {"grouped_linear(rows={1|2|16|17},groups=4,inputs=64,outputs=64)", "rows around a tile of 16"},
    {"grouped_linear(rows=1,groups={1|2|8},inputs=128,outputs={512|520|1280|1288})",
     "N of all groups on both sides of 512 and 1280"},

    // Linear layers as the model has them, one token and a few.
    {"linear_fp8(rows={1|3},outputs=1280,inputs=5120,sum=wq_a)", "the model's shape"},
    {"linear_fp8(rows=1,outputs=32768,inputs=1280,sum=wq_b)", "the model's shape"},
    {"linear_fp8(rows={1|3},outputs=512,inputs=5120,sum=wkv)", "the model's shape"},
    {"linear_fp8(rows=1,outputs=2304,inputs=5120,sum=shared_w1_w3)", "the model's shape"},
    {"linear_fp8(rows=1,outputs=5120,inputs=2304,sum=shared_w2)", "the model's shape"},
    {"linear_fp4(rows={1|3},outputs=2304,inputs=5120,sum=expert_w1_w3)", "the model's shape"},
    {"linear_fp4(rows={1|3},outputs=5120,inputs=2304,sum=expert_w2)", "the model's shape"},
    {"grouped_linear(rows=1,groups=8,inputs=4096,outputs=8192)", "the model's shape"},
    {"lm_head(rows=1,outputs=4096,inputs=5120)", "the model's K"},
    {"mix(rows=2,hidden=5120)", "the model's K of 20,480"},
    {"moe_gate(rows=2,experts=384,hidden=5120)", "the model's shape"},
    {"sparse_attention(entries=640,heads=64,head_dim=512,fill={normal|holes})", "the model's shape"},
    {"index_scores(keys=4096,heads=32,head_dim=128)", "the model's heads"},
    {"compressor(rows=5,hidden=5120,channels=512)", "the model's shape"},
    {"routed_expert(rows={1|2},hidden=5120,width=2304)", "the model's shape"},

    // Compressor: parities, open groups, lengths of fault reports.
    {"compressor(rows={1|2|3|21|127|128|129},first_position={0|1},hidden=32,channels=32)",
     "both parities of length and of the first position"},
    {"compressor(rows={511|512|513},first_position={0|1},hidden=16,channels=16)", "lengths around 512"},
    {"compressor(rows=3,first_position={127|128|129|16383|16384|16385|65535|65536|1048573},hidden=32,"
     "channels=32)",
     "first positions of both parities around 128, 16,384 and 65,536, and the last"},
    {"compressor(rows={1|127|128|129},ratio=1,first_position=1,hidden=32,channels=32)", "ratio 1"},
    {"compressor(rows={3|4|5},first_position={3|4|5},ratio=4,hidden=32,channels={16|33})",
     "groups of 4 around their ends; channels that no lane count divides"},

    // Indexer.
    {"index_keys(groups={1|127|128|129},ratio={1|2},channels=64,head_dim=32,rope_dim=16)",
     "groups around 128"},
    {"index_keys(groups=2,first_group={63|64|8191|8192|32767|32768|524286},channels=64,head_dim=64,rope_dim="
     "64)",
     "positions around 128, 16,384 and 65,536, and the last"},
    {"index_queries(rows={1|2|127|128|129},heads=2,head_dim=32,rope_dim=16,q_rank=32,hidden=32)",
     "rows around 128"},
    {"index_queries(rows=2,heads={1|31|32|33},head_dim=32,rope_dim=32,q_rank=64,hidden=64)",
     "heads around 32: the factor's square root"},
    {"index_scores(keys={1|127|128|129|511|512|513|1023|1024|1025},heads=3,head_dim=32)",
     "keys around 128 and tasks of 512"},
    {"index_scores(keys={16383|16384|16385},heads=2,head_dim=32)", "keys around the pool's 16,384"},
    {"index_scores(keys=514,visible={1|511|512|513},heads=2,head_dim=32,fill={normal|ties})",
     "what is visible around 512, poison behind it"},
    {"index_scores(keys=130,visible=129,heads={1|2|7|8|9|31|32|33},head_dim=64)",
     "heads around the 8 lanes and 32"},

    // Selection.
    {"candidate_pool(visible={1|7|8|9|16383|16384|16391|16392|16393})",
     "rows around a block and around the pool's 16,384"},
    {"candidate_pool(visible={16384|16385},fill={ties|masked})",
     "equal and masked blocks when the pool overflows"},
    {"candidate_pool(visible={63|64|65},block_size={1|8|64},topk_blocks={1|2},fill={normal|ties})",
     "one block kept: the newest; blocks of one row"},
    {"top_k(rows=2,columns={511|512|513},fill={ties|special|masked})", "k of 512 among 511, 512 and 513"},
    {"top_k(rows=1,columns={16383|16384|16385},fill={normal|ties})", "columns around the pool's 16,384"},
    {"top_k(rows=3,columns=129,k={1|2|127|128|129|130},order={ascending|selection},fill=ties)",
     "k from 1 to more than there is, all ties"},
    {"top_k(rows=2,columns=384,k={5|6|7},order=selection,fill=special)",
     "NaN, infinities and zeros at the border"},

    // Attention.
    {"sparse_attention(entries={1|63|64|65|127|128|129|191|192|193},heads=2,head_dim=32)",
     "entries around blocks of 64"},
    {"sparse_attention(entries={511|512|513|639|640|641},heads=1,head_dim=32)",
     "entries around 512 and the list's 640"},
    {"sparse_attention(entries={64|127|128|129|640},heads=5,head_dim=32,fill={holes|climbing|all_masked})",
     "poison, moving maxima and empty lists around blocks"},
    {"sparse_attention(entries={66|127|128|129|640},heads=2,head_dim=32,fill=leading_gap)",
     "an empty first block, then one entry and more"},
    {"sparse_attention(entries=65,heads={1|2|16|17},head_dim={16|48|576})",
     "heads and channels that fill no tile"},

    // Residual streams.
    {"mix(rows={1|127|128|129},hidden=16)", "rows around 128"},
    {"mix(rows=2,hidden={63|64|65|512})", "K around the 256 lanes"},
    {"mix(rows=4,streams={1|2|3|8},hidden=32,iterations=3,fill={normal|limits})", "other numbers of copies"},
    {"sinkhorn(rows={1|127|128|129})", "rows around 128"},
    {"sinkhorn(rows=4,streams={1|2|8},iterations={1|2|20},fill={normal|limits})", "one step, one copy"},
    {"collapse(rows={1|127|128|129},hidden=32)", "rows around 128"},
    {"collapse(rows=2,streams={1|2|4},hidden={1|31|33},fill={normal|one_hot})",
     "channels that fill no vector"},
    {"expand(rows={1|127|128|129},hidden=32)", "rows around 128"},
    {"expand(rows=2,streams={1|2|4},hidden={1|31|33},fill={normal|identity})",
     "channels that fill no vector"},

    // Experts.
    {"moe_gate(rows={1|2|127|128|129},experts=16,experts_per_token=6,hidden=32)", "rows around 128"},
    {"moe_gate(rows=3,experts={31|32|33|383|384|385},hidden=32,fill={normal|ties})",
     "experts around a warp and the model's 384"},
    {"moe_gate(rows=3,experts=16,experts_per_token={1|5|6|7|16},hidden=64,fill=ties)", "k from 1 to all"},
    {"moe_gate(rows=3,experts=16,hidden={16|1008|1024|1040},fill={normal|images})", "K around eight pieces"},
    {"swiglu(rows={1|127|128|129},width=32)", "rows around 128"},
    {"swiglu(rows=2,width={1|31|32|33|2304},weighted={0|1},fill=limits)",
     "clamps; widths that fill no vector"},
    {"swiglu(rows=2,width=64,limit={0|1|1e+30},fill=limits)", "limits of the clamps themselves"},
    {"routed_expert(rows={1|2|15|16|17},hidden=64,width=32)", "rows around a tile of 16"},
    {"routed_expert(rows=2,hidden=96,width={32|64|96},fill=limits)", "K of one, two and three blocks"},
    {"shared_expert(rows={1|2|15|16|17},hidden=64,width=32)", "rows around a tile of 16"},
    {"shared_expert(rows=2,hidden=96,width={32|64|96},fill=limits)", "K of one, two and three blocks"},
    {"experts(rows={1|2|15|16|17},hidden=64,width=32)", "rows around a tile of 16"},
    {"experts(rows=2,experts={1|6|7},experts_per_token=1,hidden=64,width=32,fill=limits)",
     "one expert a token, of one and of several"},
    {"experts(rows=2,experts=8,experts_per_token={2|6|8},hidden=64,width=32)", "the model's six, and all"},

    // Engram.
    {"engram_row_ids(tokens={1|2|3|4|5},history={0|1|2|3|4},layer_index={0|1})",
     "the beginning of a sequence: n-grams of 2, 3 and 4 that are not there"},
    {"engram_row_ids(tokens={127|128|129},history=3,layer_index={0|1},fill={normal|dead})",
     "tokens around 128"},
    {"engram_row_ids(tokens=7,history=3,pad={0|99091},fill=dead)", "the first and the last id as padding"},
    {"engram_lookup(ids={1|127|128|129},table_rows=50,head_dim=32)", "ids around 128"},
    {"engram_lookup(ids=8,table_rows={1|2},head_dim={32|64|256},fill={normal|scales})", "one row; one block"},
    {"engram(tokens={1|2|3|127|128|129},streams=2,hidden=16,columns=2,table_rows=20,head_dim=32)",
     "tokens around 128"},
    {"engram(tokens=3,streams={1|4},hidden={15|16|17},columns=24,table_rows=50,head_dim=32,fill={normal|dead}"
     ")",
     "channels that fill no vector, image positions"},

    // Sampling.
    {"greedy_token(vocabulary={2|127|128|129|511|512|513|129279|129281},fill={normal|ties})",
     "vocabularies around a block and the model's"},
    {"token_probabilities(vocabulary={2|127|128|129|511|512|513|16385},fill={normal|far})",
     "vocabularies around lanes and blocks"},
    {"token_probabilities(vocabulary=1000,temperature={1e-05|0.1|2|1000},fill={normal|far})",
     "temperatures from the least to the largest"},
    {"sample_token(vocabulary={1|2|127|128|129|513},first={0|1|2|3})",
     "counters at every place of a block of four"},
    {"sample_token(vocabulary=512,random_seed={0|1|2|3|4},temperature={0.01|1|100})", "draws"},
};

}  // namespace

std::span<const SweepRow> sweep_rows() {
    return rows;
}

std::vector<std::string> expanded(std::string_view cases) {
    const size_t open = cases.find('{'), close = cases.find('}');
    if (open == std::string_view::npos) return {std::string(cases)};
    std::vector<std::string> texts;
    for (size_t first = open + 1; first <= close;) {
        const size_t last = std::min(cases.find('|', first), close);
        std::string text(cases.substr(0, open));
        text += cases.substr(first, last - first);
        text += cases.substr(close + 1);
        for (std::string& one : expanded(text)) texts.push_back(std::move(one));
        first = last + 1;
    }
    return texts;
}

}  // namespace touchstone
