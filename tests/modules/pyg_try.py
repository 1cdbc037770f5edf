import numpy as np, torch, sys, traceback
import torch_geometric.nn as gnn
from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.folds import Edges
from sargnn.modules.pyg_index import edge_index, Lazy, values
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.load import load_plan
from tests.graphs import assign, nasty_graph
from tests.turns import *
GRAPH = nasty_graph(150, seed=3)
IN=8
def rows(width=IN, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(GRAPH.num_nodes, width, generator=g, dtype=torch.float64)
L=torch.nn.Linear
CASES={
 'sage':lambda:gnn.SAGEConv(8,4),'sage_max':lambda:gnn.SAGEConv(8,4,aggr='max'),'gcn0':lambda:gnn.GCNConv(8,4,add_self_loops=False),
 'graph':lambda:gnn.GraphConv(8,4),'gin':lambda:gnn.GINConv(L(8,4)),'gat0':lambda:gnn.GATConv(8,4,heads=2,add_self_loops=False),
 'gatv2':lambda:gnn.GATv2Conv(8,4,heads=2,add_self_loops=False),'tr':lambda:gnn.TransformerConv(8,4,heads=2),'edge':lambda:gnn.EdgeConv(L(16,4)),
 'pna':lambda:gnn.PNAConv(8,4,['mean','max','min','std'],['identity','amplification'],torch.ones(9)),'softmaxaggr':lambda:gnn.SAGEConv(8,4,aggr=gnn.SoftmaxAggregation(learn=True)),
 'tag':lambda:gnn.TAGConv(8,4,normalize=False),'gated':lambda:gnn.GatedGraphConv(8,2),'resgated':lambda:gnn.ResGatedGraphConv(8,4),'le':lambda:gnn.LEConv(8,4),
 'gen':lambda:gnn.GENConv(8,4),'mf':lambda:gnn.MFConv(8,4),'film':lambda:gnn.FiLMConv(8,4),'cluster':lambda:gnn.ClusterGCNConv(8,4),'gat':lambda:gnn.GATConv(8,4),'gcn':lambda:gnn.GCNConv(8,4),
 'sg':lambda:gnn.SGConv(8,4,K=2),'appnp':lambda:gnn.APPNP(2,0.1),'cheb':lambda:gnn.ChebConv(8,4,3),'arma':lambda:gnn.ARMAConv(8,4),'feast':lambda:gnn.FeaStConv(8,4,heads=2),'agnn':lambda:gnn.AGNNConv(),
 'gcn2':lambda:gnn.GCN2Conv(8,0.1),'mixhop':lambda:gnn.MixHopConv(8,4),'ssg':lambda:gnn.SSGConv(8,4,0.1,K=2),'wlc':lambda:gnn.WLConvContinuous(),'dir':lambda:gnn.DirGNNConv(gnn.SAGEConv(8,4)),'anti':lambda:gnn.AntiSymmetricConv(8),
 'cg':lambda:gnn.CGConv(8),'dyn':None,'sagelstm':None,'pool':lambda:gnn.SAGEConv(8,4,aggr='max',project=True),'sage_std':lambda:gnn.SAGEConv(8,4,aggr=['mean','std','var','sum']),'power':lambda:gnn.SAGEConv(8,4,aggr=gnn.PowerMeanAggregation(learn=True)),
 'sage_mul':lambda:gnn.SAGEConv(8,4,aggr='mul'),'sage_min':lambda:gnn.SAGEConv(8,4,aggr='min'),'median':lambda:gnn.SAGEConv(8,4,aggr='median'),'super':lambda:gnn.SuperGATConv(8,4,heads=2).eval(),'gcn_t2s':lambda:gnn.GCNConv(8,4,flow='target_to_source'),'sage_t2s':lambda:gnn.SAGEConv(8,4,flow='target_to_source'),
 'signed':None,'pan':None,'gatres':lambda:gnn.GATConv(8,4,heads=2,residual=True,concat=False),'trbeta':lambda:gnn.TransformerConv(8,4,heads=2,beta=True),'gcn_imp':lambda:gnn.GCNConv(8,4,improved=True),'gcn_cached':lambda:gnn.GCNConv(8,4,cached=True),
 'decomp':lambda:gnn.SAGEConv(8,4,decomposed_layers=2),'gps':None,'hgt':None,'dna':None,'lsage':lambda:gnn.SAGEConv(-1,4),'bgcn':lambda:gnn.models.BasicGNN if 0 else gnn.GCN(8,6,2,4,norm='batch',jk='cat'),'mgraphsage':lambda:gnn.GraphSAGE(8,6,3,4,norm='layer'),'mgat':lambda:gnn.GAT(8,6,2,4,heads=2,v2=True),'mgin':lambda:gnn.GIN(8,6,2,4),'mpna':lambda:gnn.PNA(8,6,2,4,aggregators=['mean','max'],scalers=['identity'],deg=torch.ones(9)),'medge':lambda:gnn.EdgeCNN(8,6,2,4),'graphnorm':lambda:gnn.Sequential('x, edge_index',[(gnn.GCNConv(8,4),'x, edge_index -> x'),gnn.GraphNorm(4)]),'pairnorm':lambda:gnn.Sequential('x, edge_index',[(gnn.GCNConv(8,4),'x, edge_index -> x'),gnn.PairNorm()]),
 'general':lambda:gnn.GeneralConv(8,4),'simple':lambda:gnn.SimpleConv(),'fa':None,'eg':lambda:gnn.EGConv(8,8,num_heads=2,num_bases=2),'lg':lambda:gnn.LGConv(),
}
def made(n): torch.manual_seed(0); return CASES[n]().double()
def whole(n):
    dst=np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr)); ei=torch.stack([torch.from_numpy(np.asarray(GRAPH.indices).astype(np.int64)),torch.from_numpy(dst)])
    layer,x=made(n),rows().requires_grad_(); out=layer(x,ei); out.backward(rows(out.shape[1],1)); return out.detach(),x.grad,{k:p.grad for k,p in layer.named_parameters() if p.grad is not None}
def part(group,n,mode):
    p=list(parts_of(GRAPH, assign(GRAPH,'metis',group.world), group.world))[group.rank]
    engine=Engine(group,mode=mode,kernel='auto',dtype=torch.float64)
    plan=load_plan(p,group.rank,engine.mode.layout,device=torch.device('cpu'),message_rows=17,dtype=engine.dtype)
    layer,own=made(n),plan.node_ids
    maker=GraphMaker(); maker.prepare(engine,[plan]); calls=StockCalls(engine,Places(group,[plan]),path=None); session=maker.session(engine,calls)
    e=Edges(session,plan,Rows('nodes',0,0),Rows('nodes',0,0),Rows('edges',0,0)); ei=edge_index(e)
    x=tagged(rows()[own].requires_grad_(),Rows('nodes'))
    with calls:
        out=layer(x,ei)
        if isinstance(out,Lazy): out=values(out)
    out.backward(rows(out.shape[1],1)[own])
    return own,out.detach(),x.grad,{k:group.sum_(p.grad.clone()) for k,p in layer.named_parameters() if p.grad is not None},maker.report.lines
def worlds(n, mode, world):
    from tests.pool import pool
    w=whole(n); bad=[]
    for own,out,dx,g,notes in pool(world)(part,n,mode):
        err=[float((out-w[0][own]).abs().max()) if len(own) else 0.0,float((dx-w[1][own]).abs().max()) if len(own) else 0.0,*(float((g[k]-v).abs().max()) for k,v in w[2].items())]
        bad.append(max(err))
    return max(bad),[l.split(': ',1)[-1][:60] for l in notes]
if __name__=='__main__' and sys.argv[1]=='w':
    for n in (sys.argv[4:] or [k for k in CASES if CASES[k]]):
        try: print(n,*worlds(n,sys.argv[2],int(sys.argv[3])))
        except Exception as e:
            tb=traceback.extract_tb(e.__traceback__)[-1]
            print(n,'FAIL',type(e).__name__,str(e).replace('\n',' ')[:170],tb.filename[-30:],tb.lineno)
elif __name__=='__main__':
    for n in (sys.argv[2:] or [k for k in CASES if CASES[k]]):
        try:
            w=whole(n); own,out,dx,g,notes=part(Group.single(),n,sys.argv[1])
            err=[float((out-w[0][own]).abs().max()),float((dx-w[1][own]).abs().max()),*(float((g[k]-v).abs().max()) if k in g else 'missing' for k,v in w[2].items())]
            bad = any(e=='missing' or not e<1e-9 for e in err)
            print(n,'BAD' if bad else 'ok',max(e for e in err if e!='missing') if not bad else err,[l.split(': ',1)[-1][:70] for l in notes])
        except Exception as e:
            tb=traceback.extract_tb(e.__traceback__)[-1]
            print(n,'FAIL',type(e).__name__,str(e).replace('\n',' ')[:170],tb.filename[-30:],tb.lineno)
