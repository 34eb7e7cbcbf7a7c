/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "inspect.h"

static int64_t number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "-";
}

#define SIZE_TEXT 32

static const char *size_text(char out[SIZE_TEXT], int64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)bytes;
	unsigned int unit = 0;

	for (; value >= 1024 && unit < 4; unit++)
		value /= 1024;
	snprintf(out, SIZE_TEXT, unit ? "%.1f %s" : "%.0f %s", value,
		 units[unit]);
	return out;
}

static void print_tokens(const json_t *g, bool raw)
{
	const char *first =
		raw ? "; texts end at" : "; texts end at compressed";
	const json_t *pad = json_object_get(g, "pad_id"), *cut;
	size_t i;

	printf("tokens      %" PRId64 " raw", number(g, "vocab_size"));
	if (!raw)
		printf(", %" PRId64 " compressed",
		       number(g, "compressed_vocab_size"));
	printf(", pad %" PRId64, number(g, "raw_pad_id"));
	if (!raw && json_is_integer(pad))
		printf(" -> %" PRId64, (int64_t)json_integer_value(pad));
	json_array_foreach(json_object_get(g, "cut_ids"), i, cut)
	{
		printf("%s %" PRId64, i ? "," : first,
		       (int64_t)json_integer_value(cut));
	}
	putchar('\n');
}

static void print_geometry(const json_t *all)
{
	const json_t *g = json_object_get(all, "geometry");
	const json_t *map = json_object_get(all, "token_map");
	const bool raw = !strcmp(word(map, "source"), "raw");

	if (!json_is_object(g))
		return;
	printf("rows        %" PRId64 " x %s, scale %s", number(g, "dim"),
	       word(g, "dtype"), word(g, "scale"));
	if (!strcmp(word(g, "scale"), "ue8m0"))
		printf(" per %" PRId64, number(g, "block_size"));
	printf("\nhash        n-grams %" PRId64 "..%" PRId64 ", %" PRId64
	       " heads, %" PRId64 " columns, ",
	       number(g, "min_ngram"), number(g, "max_ngram"),
	       number(g, "heads"), number(g, "columns"));
	if (number(g, "engram_vocab_size"))
		printf("primes from %" PRId64 "\n",
		       number(g, "engram_vocab_size"));
	else
		puts("moduli as given");
	print_tokens(g, raw);
	if (!strcmp(word(map, "source"), "none"))
		puts("token map   none: rows can be looked up, not hashed");
	else if (raw)
		puts("token map   none: raw ids are hashed");
	else
		printf("token map   %s, %" PRId64 " entries\n",
		       word(map, "file"), number(map, "entries"));
}

static void print_tensor(const json_t *layer, const char *kind)
{
	const json_t *t = json_object_get(layer, kind), *n;
	char size[SIZE_TEXT];
	size_t i;

	if (!json_is_object(t)) {
		printf("  %-6s  -\n", kind);
		return;
	}
	printf("  %-6s  %s\n          %s [", kind, word(t, "name"),
	       word(t, "dtype"));
	json_array_foreach(json_object_get(t, "shape"), i, n)
	{
		printf("%s%" PRId64, i ? ", " : "",
		       (int64_t)json_integer_value(n));
	}
	printf("], %s, in %s at byte %" PRId64,
	       size_text(size, number(t, "bytes")), word(t, "file"),
	       number(t, "offset"));
	if (json_object_get(t, "parts"))
		printf(", the first of %" PRId64 " parts", number(t, "parts"));
	putchar('\n');
}

static void print_layers(const json_t *all)
{
	const json_t *layer;
	size_t i;

	json_array_foreach(json_object_get(all, "layers"), i, layer)
	{
		printf("\nlayer %" PRId64 ", %" PRId64 " rows\n",
		       number(layer, "layer_id"), number(layer, "rows"));
		print_tensor(layer, "weight");
		print_tensor(layer, "scale");
	}
}

static void print_files(const json_t *all)
{
	const json_t *file, *disk = json_object_get(all, "disk");
	char size[SIZE_TEXT], used[SIZE_TEXT];
	size_t i;

	if (!json_array_size(json_object_get(all, "files")))
		return;
	printf("\nfiles, %s, of which %s are these tensors\n",
	       size_text(size, number(disk, "files_bytes")),
	       size_text(used, number(disk, "tensors_bytes")));
	json_array_foreach(json_object_get(all, "files"), i, file)
	{
		printf("  %10s  %s\n", size_text(size, number(file, "bytes")),
		       word(file, "name"));
	}
}

/* `brief`: no word on what to do about it. */
static void print_fit(const char *name, const char *pages,
		      const json_t *verdict, int64_t bytes, bool brief)
{
	const bool fits = json_is_true(json_object_get(verdict, "fits"));
	char size[SIZE_TEXT];

	printf("  %-9s  %-13s  %9s  %s", name, pages, size_text(size, bytes),
	       fits ? "fits now" : "does not fit");
	if (fits || brief)
		putchar('\n');
	else
		printf(": %s\n             fix: %s\n", word(verdict, "message"),
		       word(verdict, "fix"));
}

static void print_memory(const json_t *all, const char *which, bool brief)
{
	const json_t *m = json_object_get(all, which), *backing;
	char size[SIZE_TEXT], more[SIZE_TEXT], pages[SIZE_TEXT + 8];
	size_t i;

	if (!json_is_object(m))
		return;
	printf("\nmemory, %s of rows and %s before them, %s\n",
	       size_text(size, number(m, "records_bytes")),
	       size_text(more, number(m, "header_bytes")), word(m, "layout"));
	json_array_foreach(json_object_get(m, "backings"), i, backing)
	{
		const int64_t page = number(backing, "page_bytes");

		snprintf(pages, sizeof(pages), "%s pages",
			 size_text(size, page));
		print_fit(word(backing, "backing"), page > 65536 ? pages : "",
			  backing, number(backing, "bytes"), brief);
	}
	if (brief)
		return;
	print_fit("locked", "", json_object_get(m, "lock"),
		  number(m, "total_bytes"), false);
	printf("  %-9s  %-13s  %9s  on the device, when all rows are "
	       "attached\n",
	       "GPU", "page tables",
	       size_text(size, number(m, "gpu_page_tables_bytes")));
}

static void print_ranks(const json_t *all)
{
	const json_t *rank, *ranks = json_object_get(all, "ranks");
	char size[SIZE_TEXT], tables[SIZE_TEXT];
	size_t i;

	if (!json_array_size(ranks))
		return;
	puts("\nrank   heads     rows          memory      GPU page tables");
	json_array_foreach(ranks, i, rank)
	{
		printf("%4" PRId64 "  %3" PRId64 "..%-3" PRId64 "  %-12" PRId64
		       "  %-10s  %s\n",
		       number(rank, "tp_rank"), number(rank, "head_begin"),
		       number(rank, "head_end") - 1, number(rank, "rows"),
		       size_text(size, number(rank, "bytes")),
		       size_text(tables,
				 number(rank, "gpu_page_tables_bytes")));
	}
}

static void print_problems(const json_t *all)
{
	const json_t *p, *problems = json_object_get(all, "problems");
	const size_t n = json_array_size(problems);
	size_t i;

	if (n)
		printf("\n%zu problem%s\n", n, n == 1 ? "" : "s");
	json_array_foreach(problems, i, p)
	{
		printf("  %s\n", word(p, "message"));
		if (json_object_get(p, "fix"))
			printf("    fix: %s\n", word(p, "fix"));
	}
}

void inspect_text(const json_t *all)
{
	printf("checkpoint  %s\nloadable    %s\n", word(all, "checkpoint"),
	       json_is_true(json_object_get(all, "loadable"))
		       ? "yes"
		       : "no, see the end");
	print_geometry(all);
	print_layers(all);
	print_files(all);
	print_memory(all, "memory", false);
	print_memory(all, "memory_other_layout", true);
	print_ranks(all);
	print_problems(all);
}
