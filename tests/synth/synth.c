/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "synth.h"
#include "synth_rows.h"

static const char help[] =
	"usage: engram-synth [OPTION]... DIR\n"
	"Write a synthetic checkpoint directory, laid out as DeepSeek-V4.1's.\n"
	"\n"
	"  --layers L,L,...           layer ids (1,14)\n"
	"  --engram-vocab-size N      rows of one hash head, about (2000)\n"
	"  --heads N                  hash heads of each n-gram size (8)\n"
	"  --max-ngram N              n-grams of 2..N tokens (4)\n"
	"  --dim N                    elements of a row, a multiple of 32 "
	"(256)\n"
	"  --vocab-size N             raw token ids (4096)\n"
	"  --compressed-vocab-size N  compressed token ids (3000)\n"
	"  --pad-id N                 raw pad token (2)\n"
	"  --shards N                 safetensors files (3)\n"
	"  --seed N                   other rows for each N, 0..3 (0)\n"
	"  --split-scales             a layer's scales in another shard\n"
	"  --single-file              model.safetensors and no index\n"
	"  --prefix P                 layers (default) or model.layers\n"
	"  --u8                       dtypes U8 instead of F8_E4M3 and "
	"F8_E8M0\n"
	"  --flat                     config.json without text_config\n"
	"  --no-token-map             leave engram_token_map.json out\n"
	"  --force                    replace DIR if engram-synth wrote it\n"
	"  --help, --version\n"
	"\n"
	"Rows are a function of layer and row: see tests/synth/synth_rows.h.\n";

enum {
	OPT_VERSION = 1,
	OPT_LAYERS,
	OPT_VOCAB,
	OPT_HEADS,
	OPT_NGRAM,
	OPT_DIM,
	OPT_RAW_VOCAB,
	OPT_COMPRESSED,
	OPT_PAD,
	OPT_SHARDS,
	OPT_SEED,
	OPT_SPLIT,
	OPT_SINGLE,
	OPT_PREFIX,
	OPT_U8,
	OPT_FLAT,
	OPT_NO_MAP,
	OPT_FORCE
};

static const struct option long_options[] = {
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
	{"layers", required_argument, NULL, OPT_LAYERS},
	{"engram-vocab-size", required_argument, NULL, OPT_VOCAB},
	{"heads", required_argument, NULL, OPT_HEADS},
	{"max-ngram", required_argument, NULL, OPT_NGRAM},
	{"dim", required_argument, NULL, OPT_DIM},
	{"vocab-size", required_argument, NULL, OPT_RAW_VOCAB},
	{"compressed-vocab-size", required_argument, NULL, OPT_COMPRESSED},
	{"pad-id", required_argument, NULL, OPT_PAD},
	{"shards", required_argument, NULL, OPT_SHARDS},
	{"seed", required_argument, NULL, OPT_SEED},
	{"split-scales", no_argument, NULL, OPT_SPLIT},
	{"single-file", no_argument, NULL, OPT_SINGLE},
	{"prefix", required_argument, NULL, OPT_PREFIX},
	{"u8", no_argument, NULL, OPT_U8},
	{"flat", no_argument, NULL, OPT_FLAT},
	{"no-token-map", no_argument, NULL, OPT_NO_MAP},
	{"force", no_argument, NULL, OPT_FORCE},
	{NULL, 0, NULL, 0},
};

__attribute__((noreturn)) static void usage(const char *what, const char *value)
{
	fprintf(stderr, "engram-synth: %s: %s\n  fix: engram-synth --help\n",
		what, value);
	exit(2);
}

static uint32_t number(const char *what, const char *text, uint32_t min,
		       uint32_t max)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || n < min || n > max) {
		fprintf(stderr,
			"engram-synth: --%s: must be %" PRIu32 "..%" PRIu32
			", not \"%s\"\n",
			what, min, max, text);
		exit(2);
	}
	return (uint32_t)n;
}

static void parse_layers(struct synth_options *o, char *text)
{
	char *word, *state = NULL;

	o->num_layers = 0;
	for (word = strtok_r(text, ",", &state); word;
	     word = strtok_r(NULL, ",", &state)) {
		if (o->num_layers == SYNTH_LAYERS_MAX)
			usage("--layers", "too many");
		o->layers[o->num_layers++] =
			(int32_t)number("layers", word, 0, 10000);
	}
	if (!o->num_layers)
		usage("--layers", "names no layer");
}

static void parse(struct synth_options *o, int argc, char **argv)
{
	int c, index = 0;

	while ((c = getopt_long(argc, argv, "h", long_options, &index)) != -1) {
		const char *name = long_options[index].name;

		switch (c) {
		case 'h':
			fputs(help, stdout);
			exit(0);
		case OPT_VERSION:
			puts("engram-synth " ENGRAM_VERSION_STRING);
			exit(0);
		case OPT_LAYERS:
			parse_layers(o, optarg);
			break;
		case OPT_VOCAB:
			o->engram_vocab_size =
				number(name, optarg, 2, INT32_MAX);
			break;
		case OPT_HEADS:
			o->heads = number(name, optarg, 1, 256);
			break;
		case OPT_NGRAM:
			o->max_ngram = number(name, optarg, 2, 16);
			break;
		case OPT_DIM:
			o->dim = number(name, optarg, 32, 16384);
			break;
		case OPT_RAW_VOCAB:
			o->vocab_size = number(name, optarg, 4, 1 << 24);
			break;
		case OPT_COMPRESSED:
			o->compressed_vocab_size =
				number(name, optarg, 2, 1 << 24);
			break;
		case OPT_PAD:
			o->pad_id = number(name, optarg, 0, 1 << 24);
			break;
		case OPT_SHARDS:
			o->shards = number(name, optarg, 1, 99999);
			break;
		case OPT_SEED:
			o->seed = number(name, optarg, 0, SYNTH_SEEDS - 1);
			break;
		case OPT_SPLIT:
			o->split_scales = true;
			break;
		case OPT_SINGLE:
			o->single_file = true;
			break;
		case OPT_PREFIX:
			o->prefix = optarg;
			break;
		case OPT_U8:
			o->weight_dtype = o->scale_dtype = "U8";
			break;
		case OPT_FLAT:
			o->flat = true;
			break;
		case OPT_NO_MAP:
			o->no_token_map = true;
			break;
		case OPT_FORCE:
			o->force = true;
			break;
		default:
			fputs("  fix: engram-synth --help\n", stderr);
			exit(2);
		}
	}
	if (argc - optind != 1)
		usage("one directory is needed", "DIR");
	o->dir = argv[optind];
	if (o->single_file)
		o->shards = 1;
	if (o->dim % SYNTH_BLOCK)
		usage("--dim", "must be a multiple of 32");
	if (o->compressed_vocab_size > o->vocab_size)
		usage("--compressed-vocab-size", "is over --vocab-size");
	if (o->pad_id >= o->vocab_size)
		usage("--pad-id", "must be below --vocab-size");
	if (strlen(o->dir) > 4000 || strlen(o->prefix) > 64)
		usage("too long", o->dir);
}

enum engram_status synth_remove_dir(const char *dir, struct engram_error *err)
{
	static const char *const ours[] = {"config.json", "model*.safetensors",
					   "model.safetensors.index.json",
					   "engram_token_map.json"};
	enum engram_status status = ENGRAM_OK;
	struct dirent *entry;
	DIR *d = opendir(dir);

	if (!d)
		return errno == ENOENT
			       ? ENGRAM_OK
			       : engram_error_sys(err, errno, "open %s", dir);
	while (!status && (entry = readdir(d))) {
		for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
			if (!fnmatch(ours[i], entry->d_name, 0) &&
			    unlinkat(dirfd(d), entry->d_name, 0))
				status = engram_error_sys(err, errno,
							  "remove %s/%s", dir,
							  entry->d_name);
	}
	closedir(d);
	if (!status && rmdir(dir))
		status = engram_error_sys(err, errno, "remove %s", dir);
	return status;
}

/* The directory that DIR will be in has room for all of it. */
static enum engram_status check_room(const struct synth *s, const char *at)
{
	const uint64_t needed = synth_data_bytes(s) + (1 << 20);
	struct statvfs fs;
	uint64_t room;

	if (statvfs(at, &fs))
		return engram_error_sys(s->err, errno, "statvfs %s", at);
	room = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (room >= needed)
		return ENGRAM_OK;
	return engram_error_set(s->err, ENGRAM_ENOSPACE,
				"%s: %" PRIu64 " bytes needed, %" PRIu64
				" free",
				at, needed, room);
}

static enum engram_status write_all(const struct synth *s)
{
	enum engram_status status = check_room(s, s->dir);

	if (!status)
		status = synth_write_config(s);
	if (!status && !s->options->no_token_map)
		status = synth_write_token_map(s);
	if (!status && !s->options->single_file)
		status = synth_write_index(s);
	if (!status)
		status = synth_write_shards(s);
	return status;
}

/* Under another name first: a directory that is there is whole. */
static enum engram_status synth(const struct synth_options *o,
				struct engram_geometry *geometry,
				struct engram_error *err)
{
	char temporary[4100];
	struct synth s = {.options = o,
			  .geometry = geometry,
			  .dir = temporary,
			  .err = err};
	enum engram_status status = ENGRAM_OK;

	snprintf(temporary, sizeof(temporary), "%s.tmp-%d", o->dir,
		 (int)getpid());
	if (!o->force && !access(o->dir, F_OK)) {
		engram_error_set(err, ENGRAM_EEXIST, "%s is there already",
				 o->dir);
		engram_error_fix(err, "name another directory, or --force");
		return ENGRAM_EEXIST;
	}
	if (mkdir(temporary, 0755))
		return engram_error_sys(err, errno, "create %s", temporary);
	status = write_all(&s);
	if (!status && o->force)
		status = synth_remove_dir(o->dir, err);
	if (!status && rename(temporary, o->dir))
		status = engram_error_sys(err, errno, "rename %s to %s",
					  temporary, o->dir);
	if (status)
		synth_remove_dir(temporary, NULL);
	else
		printf("%s: %" PRIu32 " layers, %" PRIu64 " bytes in %" PRIu32
		       " %s\n",
		       o->dir, o->num_layers, synth_data_bytes(&s), o->shards,
		       o->shards == 1 ? "file" : "files");
	return status;
}

int main(int argc, char **argv)
{
	struct synth_options options = {
		.layers = {1, 14},
		.num_layers = 2,
		.engram_vocab_size = 2000,
		.heads = 8,
		.max_ngram = 4,
		.dim = 256,
		.vocab_size = 4096,
		.compressed_vocab_size = 3000,
		.pad_id = 2,
		.shards = 3,
		.prefix = "layers",
		.weight_dtype = "F8_E4M3",
		.scale_dtype = "F8_E8M0",
	};
	struct engram_geometry *geometry = NULL;
	struct engram_error err = {0};
	enum engram_status status;

	parse(&options, argc, argv);
	status = engram_geometry_derive(
		&(struct engram_geometry_config){
			.num_layers = options.num_layers,
			.layer_ids = options.layers,
			.max_ngram = options.max_ngram,
			.num_heads = options.heads,
			.vocab_size = options.engram_vocab_size,
			.compressed_vocab_size = options.compressed_vocab_size,
		},
		&geometry, &err);
	if (!status)
		status = synth(&options, geometry, &err);
	engram_geometry_free(geometry);
	if (!status)
		return 0;
	fprintf(stderr, "engram-synth: %s\n", err.message);
	if (err.fix[0])
		fprintf(stderr, "  fix: %s\n", err.fix);
	return 1;
}
